"""Jobs on a running fabric do not reach each other, whatever a host tries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.root
@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_a_host_reaches_its_own_jobs_hosts_and_sends_as_itself_only(target: str) -> None:
    """h1 asks for all, then sends to the other job's hosts, in its own name and in that of one of them.

    Each attempt is dropped at the leaf where it comes in, and counted there.
    """
    command = [sys.executable, "-m", "tests.controlplane.isolation", target]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["learned"] == {"10.2.1.2": "02:00:0a:02:01:02"}
    assert seen["arrived"] == {"h3": ["last"], "h1": [], "h2": [], "h4": []}
    assert seen["drops"] == {
        "leaf1": {"OTHER_VRF": 4, "FORGED_SOURCE": 4},
        "leaf2": {},
        "spine1": {},
        "spine2": {},
    }
