"""The `entrain` command line: it combines the other packages into commands."""
