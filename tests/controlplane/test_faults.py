"""Real jobs on real switches go on while something that they do not need is dead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def measured(faults: Sequence[str]) -> dict[str, Any]:
    """Return what the benchmark says of these faults."""
    done = subprocess.run(
        [sys.executable, "-m", "robustness", "vclos_faults", "--json", "--window", "0", "--faults", *faults],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [each["fault"] for each in found["faults"]] == list(faults)
    return found


@pytest.mark.root
@pytest.mark.slow
def test_other_jobs_iterate_while_the_controller_or_the_ocs_is_dead() -> None:
    found = measured(("controller, admitting", "ocs, admitting"))
    for each in found["faults"]:
        assert each["phases"] == {"near": "running", "wide": "running", "third": "running"}
        assert each["wrong_entries"] == 0
        assert all(job["during"]["iterations"] > 0 for job in each["jobs"].values())


@pytest.mark.root
@pytest.mark.slow
def test_other_jobs_come_and_go_while_a_switch_is_cut_off() -> None:
    faults = ("link down", "nothing from the switch", "2 s delay")
    found = measured(faults)
    for each in found["faults"]:
        assert each["phases"] == {"near": "running", "wide": "running", "third": "running"}
        assert set(each["delays_s"]) >= {
            "early released",
            "small admitted",
            "small released",
            "late admitted",
        }
    assert found["named_s_max"] is not None
    assert found["wrong_entries"] == 0
