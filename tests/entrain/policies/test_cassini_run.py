"""Policy `cassini` in an experiment: jobs that share a link stop meeting on it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from machine.record import RECORDS
from tests.attempts import undisturbed
from tests.entrain.running import skip_if_held

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
MEASURED, LONG, SHORT = 4, 34, 22
SETTLED = range(MEASURED + 8, SHORT)
"""Iterations of the job `short` after the jobs have been moved. When they begin, an agent dies."""

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


def together(out: Path) -> float:
    """The share of the time in which the link carries anything that it carries both jobs, while `short` sends
    its iterations SETTLED. Bytes tell iterations apart: how long these take depends on the machine."""
    rates: dict[float, dict[str, float]] = {}
    with (out / "throughput.csv").open() as rows:
        for row in csv.DictReader(rows):
            if row["link"] == "left->right":
                rates.setdefault(float(row["time_s"]), {})[row["job"]] = float(row["mbps"])
    whole = sum(each.get("short", 0.0) for each in rates.values())
    sent, sending = 0.0, []
    for _, each in sorted(rates.items()):
        if int(sent / whole * SHORT) in SETTLED:
            sending.append(sum(mbps > 10 for mbps in each.values()))
        sent += each.get("short", 0.0)
    return sending.count(2) / sum(number > 0 for number in sending)


def kill_agent_when(running: subprocess.Popen[str], interface: str, job: str, iterations: int) -> None:
    """Kill the agent of an interface when the first rank of a job has recorded so many iterations."""
    deadline = time.monotonic() + 100
    while True:
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < deadline
        records = list((RECORDS / f"run-{running.pid}").glob(f"*/records/{job}-rank0.jsonl"))
        if records and records[0].read_text().count('"kind": "iteration"') >= iterations:
            break
        time.sleep(0.05)
    [agent] = [
        each
        for each in psutil.Process(running.pid).children(recursive=True)
        if interface in each.cmdline() and "hostbpf" in each.cmdline()
    ]
    agent.kill()


def run_pair(directory: Path) -> tuple[dict[str, Any], float]:
    """Run the experiment, in which an agent is killed. Return its results, and how much jobs met then."""
    skip_if_held()
    file, out = directory / "pair.toml", directory / "out"
    file.write_text(EXPERIMENT)
    command = [sys.executable, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        kill_agent_when(running, "h1-eth0", "short", SETTLED.start)
        stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 0, stderr
    (run,) = json.loads(stdout)["runs"]
    return run, together(out)


def test_jobs_stop_meeting_and_go_on_without_an_agent(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They start at once, and without a policy they would go on to meet for most of the time."""
    run, _ = undisturbed(lambda: run_pair(tmp_path_factory.mktemp("pair")), lambda found: found[1] < 0.2, 3)
    assert run["score"] > 0.9
    assert sorted(run["shifts_ms"]) == ["long", "short"]
    stays, moves = sorted(run["shifts_ms"].values())
    assert stays == 0 <= moves < 500  # or the other job stays as well, because it is late already
    assert any("the agent of h1 does not answer" in event for event in run["pacing"]["events"])
