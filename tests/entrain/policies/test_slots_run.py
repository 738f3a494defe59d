"""Policy `slots` in an experiment: agents schedule what the jobs publish, and the results say so."""

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
name = "slots"
policy = "slots"

[network]
slow_start_after_idle = false

[slots]
slot_ms = 30
loads = "{loads}"

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 50

[[job]]
name = "one"
collective = "ring"
bytes = 500_000
compute_ms = 50
iterations = 4
hosts = ["h1", "h3"]

[[job]]
name = "two"
collective = "ring"
bytes = 500_000
compute_ms = 50
iterations = 4
hosts = ["h2", "h4"]
"""


@pytest.mark.parametrize("loads", ["inband", "emulated"])
def test_agents_schedule_the_jobs_of_an_experiment(tmp_path: Path, loads: str) -> None:
    if VARIANTS[0] in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    file, out = tmp_path / "slots.toml", tmp_path / "out"
    file.write_text(EXPERIMENT.format(loads=loads))
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["policy"], run["congestion_control"]) == ("slots", "slot_cubic")
    assert {host["host"] for host in run["scheduling"]} == {"h1", "h2", "h3", "h4"}
    for host in run["scheduling"]:
        assert host["counts"]["decisions"] > 0
        assert host["negotiation_ms"]["p50"] > 0
    assert (out / "delays.csv").exists()
    assert (out / "overhead.png").stat().st_size > 10_000
