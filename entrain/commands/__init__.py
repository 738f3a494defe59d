"""Subcommands of `entrain`, one module each."""
