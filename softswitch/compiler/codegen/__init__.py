"""Generates a program's C, one module for each part."""
