"""Watch a network that is up, or a run in progress: on a terminal, as a page, and for Prometheus."""
