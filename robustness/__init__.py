"""Campaigns that try to break entrain: faults, mutated input, limits, hostile hosts and callers."""
