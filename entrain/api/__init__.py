"""What `import entrain` offers: a thin layer on the code of the commands. docs/python.md describes it."""
