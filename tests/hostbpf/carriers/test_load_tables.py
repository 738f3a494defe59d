"""The switches' load tables hold what the hosts have announced: exactly, on each port and in each slot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.root
@pytest.mark.parametrize(
    ("target", "loss"),
    [("softswitch", 0.0), ("softswitch", 0.01), pytest.param("bmv2", 0.0, marks=pytest.mark.bmv2)],
)
def test_tables_hold_the_sum_of_what_was_announced(target: str, loss: float) -> None:
    """Flows between nine hosts on three leaves and two spines, in two VRFs, start, change and stop.

    What a port's table holds in a slot differs from the sum of the plans of the flows through it by at most
    the changes, in that slot, of their carriers that were lost: without loss, by nothing.
    """
    command = [sys.executable, "-m", "tests.hostbpf.carriers.load_tables", target, str(loss)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    compared = off = 0
    for table in seen["ports"]:
        through = [flow for flow in seen["flows"] if table["port"] in flow["path"]]
        for slot in map(str, range(seen["slot"], seen["slot"] + 9)):
            expected = sum(flow["planned"].get(slot, 0) for flow in through)
            bound = sum(flow["missing"].get(slot, 0) for flow in through)
            error = abs(table["slots"].get(slot, 0) - expected)
            assert error <= bound, (table["port"], slot)
            compared += expected > 0
            off += error > 0
    assert compared >= 100
    assert bool(off) == bool(loss)
    assert all(count["malformed"] == count["not_sent"] == 0 for count in seen["counts"].values())
    if not loss:
        assert not any(any(flow["missing"].values()) for flow in seen["flows"])
