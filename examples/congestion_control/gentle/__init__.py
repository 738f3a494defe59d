"""Tells entrain where the program of the congestion control `gentle` is."""

from pathlib import Path

SOURCE = Path(__file__).with_name("gentle.bpf.c")
