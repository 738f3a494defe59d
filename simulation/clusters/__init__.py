"""Schedulers of a GPU cluster, and the cluster in which their jobs share links."""
