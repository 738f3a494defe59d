"""The loaded program: attached to ports, its tables and externs in BPF maps."""
