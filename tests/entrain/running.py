"""Experiments that `entrain run` runs, with congestion controls in eBPF."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf.mltcp import VARIANTS

ROOT = Path(__file__).parents[2]


def skip_if_held() -> None:
    """Skip the test where another process of this machine holds the congestion controls for some time."""
    deadline = time.monotonic() + 10  # one that has just ended may not have lost them yet
    while VARIANTS[0] in available_congestion_controls():
        if time.monotonic() > deadline:
            pytest.skip("another process of this machine holds the congestion controls")
        time.sleep(0.05)


def results(file: Path, *options: str | Path) -> Any:
    """Run an experiment file, and return its results.json. Skips the test where another process of this
    machine holds the congestion controls."""
    skip_if_held()
    command = [sys.executable, "-m", "entrain.cli", "run", file, "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
