"""Flow-level simulation of the schedulers and of the papers' experiments."""
