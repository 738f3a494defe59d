"""The switches' load tables hold what the hosts have announced: exactly, on each port and in each slot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.root
@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_tables_hold_the_sum_of_what_was_announced(target: str) -> None:
    """Twelve flows between four hosts on two switches, both ways; all schedules set, and changed twice."""
    command = [sys.executable, "-m", "tests.hostbpf.load_tables", target]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    side = {
        name: number < 2 for number, name in enumerate(sorted({flow["from"] for flow in seen["announced"]}))
    }
    switches = sorted({port["switch"] for port in seen["ports"]})
    compared = 0
    for port in seen["ports"]:
        left = port["switch"] == switches[0]
        for slot in map(str, range(seen["slot"], seen["slot"] + 9)):
            expected = 0
            for flow in seen["announced"]:
                towards_host = port["peer"] == flow["to"]
                across = port["peer"] in switches and side[flow["from"]] == left != side[flow["to"]]
                if towards_host or across:
                    expected += flow["slots"].get(slot, 0)
            assert port["slots"].get(slot, 0) == expected, (port["switch"], port["peer"], slot)
            compared += expected > 0
    assert compared >= 30
    assert all(count["malformed"] == count["not_sent"] == 0 for count in seen["counts"].values())


@pytest.mark.root
@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_agents_get_path_load_and_headroom(target: str) -> None:
    """Two switches, 100 Mbit/s between them, 200 to the hosts, and 30 announced: the sum over the path's two
    links is 60, the smallest headroom 70, in each of the ten slots."""
    command = [sys.executable, "-m", "tests.hostbpf.agents_on_fabric", target]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["hops"] == 2
    slots = {each["slot"]: each for each in seen["slots"]}
    assert set(slots) == set(range(seen["base"], seen["base"] + 10))
    assert all((each["load"], each["headroom"]) == (60, 70) for each in slots.values())
