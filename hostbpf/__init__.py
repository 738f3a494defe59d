"""The datapath of a host: pacing, slot header, MLTCP, agent."""

from pathlib import Path

SOURCES = Path(__file__).parent / "bpf"
"""The kernel side's sources."""
