"""The switch programs, and what p4c made of them."""
