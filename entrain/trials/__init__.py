"""Experiments that need no network: trials on one host."""
