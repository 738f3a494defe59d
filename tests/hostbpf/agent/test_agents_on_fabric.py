"""Agents on a running fabric: what the switches tell them of a flow's path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from machine.patience import patience

ROOT = Path(__file__).parents[3]


@pytest.mark.root
@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_agents_get_path_load_and_headroom(target: str) -> None:
    """Two switches, 100 Mbit/s between them, 200 to the hosts, and 30 announced: the sum over the path's two
    links is 60, the smallest headroom 70, in each of the ten slots."""
    command = [sys.executable, "-m", "tests.hostbpf.agent.agents_on_fabric", target]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(120)
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["hops"] == 2
    slots = {each["slot"]: each for each in seen["slots"]}
    assert set(slots) == set(range(seen["base"], seen["base"] + 10))
    assert all((each["load"], each["headroom"]) == (60, 70) for each in slots.values())
