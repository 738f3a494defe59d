"""Periodic jobs: their profiles, and how to shift them in time so that they fit together."""
