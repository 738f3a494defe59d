"""What `entrain run` records in time: jobs alone, throughput on links, windows and F, what MLTCP learned."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf.controls import DIRECTORY
from hostbpf.mltcp import VARIANTS

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
[experiment]
name = "sampled"
policy = ["mltcp"]
congestion_control = ["reno"]
start_spread_ms = 20
alone_iterations = 3
sample_ms = 20

[network]
offloads = false

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 50
queue_packets = 43
"""
JOB = """
[[job]]
name = "{name}"
collective = "ring"
bytes = 300_000
compute_ms = 200
iterations = 10
hosts = ["{a}", "{b}"]
"""


def test_a_run_is_recorded_in_time(tmp_path: Path) -> None:
    if VARIANTS[0] in available_congestion_controls() and not (DIRECTORY / "mltcp_params").exists():
        pytest.skip("a process of this machine holds the congestion controls without sharing them")
    file, out = tmp_path / "sampled.toml", tmp_path / "out"
    file.write_text(
        EXPERIMENT + JOB.format(name="one", a="h1", b="h3") + JOB.format(name="two", a="h2", b="h4")
    )
    command = [sys.executable, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]

    for job in run["jobs"]:
        assert job["iteration_ms_alone"] == job["iteration_ms_ideal"] > 0.95 * job["iteration_ms_bound"]
    lines = list(csv.DictReader((out / "throughput.csv").open()))
    for link in run["links"]:  # the monitor's count and the sampler's are the same
        sampled = sum(float(line["mbps"]) * 20e3 / 8 for line in lines if line["link"] == link["link"])
        assert sampled == pytest.approx(link["bytes"], rel=0.001)

    windows = list(csv.DictReader((out / "windows.csv").open()))
    assert {line["job"] for line in windows} == {"one", "two"}
    gains = [float(line["gain"]) for line in windows if line["gain"]]
    assert gains
    assert all(0.25 <= gain <= 2 for gain in gains)
    assert {each["host"] for each in run["learned"]} == {"h1", "h2", "h3", "h4"}
    for each in run["learned"]:
        assert each["total_bytes"] == pytest.approx(300_000, rel=0.01)
        assert 50 < each["gap_ms"] < 250
    for name in ("iterations.png", "throughput.png"):
        assert (out / name).stat().st_size > 10_000
