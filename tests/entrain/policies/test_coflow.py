"""Coflow policies in an experiment: a coordinator sets rates, and jobs train on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf.mltcp import VARIANTS

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]

EXPERIMENT = """
[experiment]
name = "pair"
policy = ["lccf"]

[network]
slow_start_after_idle = false

[lccf]
interval_ms = 60

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 100

[[job]]
name = "many"
collective = "parameter-server"
servers = 1
bytes = 400_000
compute_ms = 20
iterations = 6
hosts = ["h1", "h3", "h4"]

[[job]]
name = "few"
collective = "parameter-server"
servers = 1
bytes = 1_600_000
compute_ms = 20
iterations = 2
hosts = ["h2", "h3", "h4"]
"""


def test_a_coordinator_sets_the_rates_of_a_run(tmp_path: Path) -> None:
    if VARIANTS[0] in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    file = tmp_path / "pair.toml"
    file.write_text(EXPERIMENT)
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "run", str(file), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["policy"], run["congestion_control"]) == ("lccf", "slot_cubic")
    told = run["policy_report"]
    assert told["interval_ms"] == 60
    assert told["updates"] >= told["decisions"] > 0
    assert told["update_ms"]["p50"] > told["decision_ms"]["p50"] > 0
    assert told["unanswered"] == 0
