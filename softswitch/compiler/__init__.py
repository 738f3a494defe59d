"""Compiles BMv2 JSON to a BPF object."""
