"""Coflow scheduling: what a policy sees, Parrot, its rivals, and the arithmetic that they share."""
