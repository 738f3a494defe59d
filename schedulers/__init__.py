"""The scheduling algorithms and nothing else: no I/O, no clock, no sockets."""
