"""Progress of `entrain run`: one number for all networks, runs and measurements, which only grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from entrain.experiment import Combination, load_experiment
from entrain.run.runner import _steps, share
from tests.entrain.run.test_cluster import JOBS, RUN
from tests.entrain.running import ROOT

ALONE = """
[experiment]
name = "progress"
routing = ["ecmp", "source"]
seed = [1, 2]
alone_iterations = 2

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
host_rate_mbps = 100
"""
JOB = """
[[job]]
name = "{name}"
collective = "ring"
bytes = {bytes}
compute_ms = 100
iterations = 4
hosts = {hosts}
"""
TWO = ALONE + "".join(
    JOB.format(name=name, bytes=size, hosts=hosts)
    for name, size, hosts in (("a", 100_000, '["h1", "h3"]'), ("b", 200_000, '["h2", "h4"]'))
)


def test_jobs_are_measured_alone_once_for_all_seeds(tmp_path: Path) -> None:
    file = tmp_path / "progress.toml"
    file.write_text(TWO)
    experiment = load_experiment(file)
    first, second, third, fourth = experiment.combinations()
    steps = [(first, None), (second, first), (third, None), (fourth, third)]
    assert list(_steps(experiment, [first, second, third, fourth], ())) == steps
    assert list(_steps(experiment, [second, third], [first])) == [(second, first), (third, None)]
    assert isinstance(first, Combination)


def test_shares_of_shares_make_up_the_whole() -> None:
    told: list[float] = []
    half = share(lambda _, part: told.append(part), 0.5, 1.0)
    for begin, end in ((0.0, 0.5), (0.5, 1.0)):
        for part in (0.0, 1.0):
            share(half, begin, end)("", part)
    assert told == [0.5, 0.75, 0.75, 1.0]


@pytest.mark.root
@pytest.mark.parametrize("text", [TWO, RUN], ids=["jobs", "cluster on two networks"])
def test_progress_only_grows(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.toml").write_text(text)
    (tmp_path / "jobs.csv").write_text(JOBS)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "entrain.cli", "run", str(tmp_path / "progress.toml"), "--json"]
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(
            [*command, "--progress", str(writing)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=err,
            pass_fds=[writing],
        ) as running,
    ):
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as lines:
            parts = [json.loads(line)["part"] for line in lines]
    assert running.returncode == 0, (tmp_path / "err").read_text()
    assert len(set(parts)) > 8
    assert all(before <= after + 1e-9 for before, after in pairwise(parts))
    assert 0.9 <= parts[-1] <= 1.0
