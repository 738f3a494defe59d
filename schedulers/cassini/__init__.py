"""Periodic jobs: their profiles, and the time shifts that interleave them."""
