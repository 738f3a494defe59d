"""Flow-level simulation of the schedulers and of the experiments of the papers."""
