"""Benchmarks. Ratios compare measurements from the same run."""
