"""Policy `cassini` in an experiment: jobs that share a link stop meeting on it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf.mltcp import VARIANTS
from machine.record import RECORDS

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
MEASURED, LONG, SHORT = 4, 34, 22

EXPERIMENT = f"""
[experiment]
name = "pair"
policy = "cassini"
congestion_control = "reno"
sample_ms = 10

[network]
slow_start_after_idle = false

[cassini]
measured = {MEASURED}

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 100
bottleneck_rate_mbps = 100
queue_packets = 43

[[job]]
name = "long"
collective = "ring"
bytes = 1_500_000
compute_ms = 150
iterations = {LONG}
hosts = ["h1", "h3"]

[[job]]
name = "short"
collective = "ring"
bytes = 1_500_000
compute_ms = 150
iterations = {SHORT}
hosts = ["h2", "h4"]
"""


def together(out: Path, begin_s: float, end_s: float) -> float:
    """The share of the time in which the link carries anything that it carries both jobs."""
    rates: dict[str, dict[str, float]] = {}
    with (out / "throughput.csv").open() as rows:
        for row in csv.DictReader(rows):
            if row["link"] == "left->right" and begin_s <= float(row["time_s"]) < end_s:
                rates.setdefault(row["time_s"], {})[row["job"]] = float(row["mbps"])
    sending = [sum(mbps > 10 for mbps in each.values()) for each in rates.values()]
    return sending.count(2) / sum(number > 0 for number in sending)


def kill_agent_when(running: subprocess.Popen[str], interface: str, job: str, iterations: int) -> None:
    """Kill the agent of an interface when the first rank of a job has recorded so many iterations."""
    deadline = time.monotonic() + 60
    while True:
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < deadline
        records = list((RECORDS / f"run-{running.pid}").glob(f"*/records/{job}-rank0.jsonl"))
        if records and records[0].read_text().count('"iteration"') >= iterations:
            break
        time.sleep(0.05)
    [agent] = [
        each
        for each in psutil.Process(running.pid).children(recursive=True)
        if interface in each.cmdline() and "hostbpf" in each.cmdline()
    ]
    agent.kill()


def test_jobs_stop_meeting_and_go_on_without_an_agent(tmp_path: Path) -> None:
    if VARIANTS[0] in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    file, out = tmp_path / "pair.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    command = [sys.executable, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        kill_agent_when(running, "h1-eth0", "short", SHORT - 2)
        stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 0, stderr
    (run,) = json.loads(stdout)["runs"]
    assert together(out, 4.5, 7.0) < together(out, 0.0, 1.5) / 2
    assert run["score"] > 0.9
    assert sorted(run["shifts_ms"]) == ["long", "short"]
    stays, moves = sorted(run["shifts_ms"].values())
    assert stays == 0 <= moves < 500  # or the other job stays as well, because it is late already
    assert run["drift_ms_p99"] is not None
    assert any("the agent of h1 does not answer" in event for event in run["pacing"]["events"])
