"""Real controllers that are killed with real switches: whatever one leaves, the next one puts right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.killed_controllers import FAULTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.root
@pytest.mark.slow
def test_a_controller_that_stands_by_takes_over_and_tables_and_reservations_agree() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.controlplane.killed_controllers"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *kills, last = map(json.loads, done.stdout.splitlines())
    assert [kill["fault"] for kill in kills] == list(FAULTS)
    for kill in kills:
        assert kill["status"] == -signal.SIGKILL
        assert kill["wrong"] == 0
        assert not kill["problem"]
        left = {"a"} if kill["fault"] in ("leaving", "no tables") else {"a", "b"}
        assert kill["jobs"] == dict.fromkeys(sorted(left), "running")
    assert last["stood_by"] >= len(FAULTS)
