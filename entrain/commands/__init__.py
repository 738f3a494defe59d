"""The subcommands of `entrain`, one module each."""
