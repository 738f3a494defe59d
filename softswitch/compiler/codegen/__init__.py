"""A program as C, one module for each part of it."""
