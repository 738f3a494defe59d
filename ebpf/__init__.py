"""Loader for CO-RE eBPF programs: a small typed layer over the libbpf of the system."""
