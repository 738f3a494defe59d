"""Emulate training jobs: collectives over real sockets, timed compute phases, and checked sums."""
