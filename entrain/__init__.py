"""The `entrain` command line and what it composes out of the other packages."""
