"""Real jobs on real switches go on while something that they do not need is dead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.root
@pytest.mark.slow
def test_other_jobs_iterate_while_the_controller_or_the_ocs_is_dead() -> None:
    faults = ("controller, admitting", "ocs, admitting")
    done = subprocess.run(
        [sys.executable, "-m", "robustness", "vclos_faults", "--json", "--window", "0", "--faults", *faults],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["faults"]
    assert [each["fault"] for each in found] == list(faults)
    for each in found:
        assert each["phases"] == {"near": "running", "wide": "running", "third": "running"}
        assert each["wrong_entries"] == 0
        assert all(job["during"]["iterations"] > 0 for job in each["jobs"].values())
