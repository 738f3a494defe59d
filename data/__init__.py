"""Public data that an experiment reads by default. NOTICE gives the origin and licence of each file."""

from __future__ import annotations

from pathlib import Path

TIRESIAS = Path(__file__).parent / "tiresias-60-jobs.csv"
"""60 training jobs, Parrot's workload; `simulation.traces.read_tiresias` reads it."""
