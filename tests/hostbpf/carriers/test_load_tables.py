"""The switches' load tables hold what the hosts have announced: exactly, on each port and in each slot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from machine.patience import patience
from tests.attempts import ATTEMPTS, undisturbed

ROOT = Path(__file__).parents[3]


def seen(target: str, loss: float) -> Any:
    """What hosts have announced, what of it was lost, and what the tables hold."""
    command = [sys.executable, "-m", "tests.hostbpf.carriers.load_tables", target, str(loss)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(250)
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def lost(found: Any) -> bool:
    """Whether a carrier was lost."""
    return any(any(flow["missing"].values()) for flow in found["flows"])


@pytest.mark.root
@pytest.mark.parametrize(
    ("target", "loss"),
    [("softswitch", 0.0), ("softswitch", 0.01), pytest.param("bmv2", 0.0, marks=pytest.mark.bmv2)],
)
def test_tables_hold_the_sum_of_what_was_announced(target: str, loss: float) -> None:
    """Flows between nine hosts on three leaves and two spines, in two VRFs, start, change and stop.

    What a port's table holds in a slot differs from the sum of the plans of the flows through it by at most
    the changes, in that slot, of their carriers that were lost: without loss, by nothing. BMv2 loses packets
    by itself while it has no processor, and then may try again.
    """
    attempts = ATTEMPTS if target == "bmv2" else 1
    found = undisturbed(lambda: seen(target, loss), lambda found: lost(found) == bool(loss), attempts)
    compared = off = 0
    for table in found["ports"]:
        through = [flow for flow in found["flows"] if table["port"] in flow["path"]]
        for slot in map(str, range(found["slot"], found["slot"] + 9)):
            expected = sum(flow["planned"].get(slot, 0) for flow in through)
            bound = sum(flow["missing"].get(slot, 0) for flow in through)
            error = abs(table["slots"].get(slot, 0) - expected)
            assert error <= bound, (table["port"], slot)
            compared += expected > 0
            off += error > 0
    assert compared >= 100
    assert bool(off) == bool(loss)
    assert all(count["malformed"] == count["not_sent"] == 0 for count in found["counts"].values())
