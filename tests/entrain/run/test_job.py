"""`entrain jobs run`: a job on the hosts of a network that is up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import entrain
from controlplane import api_pb2 as api
from controlplane.client import call, choose
from entrain.run.job import Place, job_on
from machine.errors import BadInput
from machine.patience import patience

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/topology/job.toml"
PLACES = [
    Place("h1", "10.0.0.1", "s1", 11),
    Place("h2", "10.0.0.2", "s1", 12),
    Place("h3", "10.0.0.3", "s2", 13),
    Place("h4", "10.0.0.4", "s3", 14),
]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(60)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ranks_are_on_the_named_hosts(tmp_path: Path) -> None:
    spec = job_on(EXAMPLE, PLACES, tmp_path)
    assert [str(address) for address in spec.hosts] == ["10.0.0.1", "10.0.0.3", "10.0.0.4"]
    assert spec.netns == ("/proc/11/ns/net", "/proc/13/ns/net", "/proc/14/ns/net")
    assert (spec.bytes, spec.iterations) == (100_000, 4)


def test_a_count_takes_hosts_of_each_switch_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[job]\nname = "j"\ncollective = "ring"\nbytes = 9\ncount = 3\n')
    spec = job_on(file, PLACES, tmp_path)
    assert [str(address) for address in spec.hosts] == ["10.0.0.1", "10.0.0.3", "10.0.0.4"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ('hosts = ["h1", "h9"]', "there is no host 'h9'; there is h1, h2, h3, h4"),
        ('hosts = ["h1", "h1"]', "h1 is listed twice"),
        ("count = 5", "5 hosts requested, but there are 4"),
        ("", "give either hosts"),
        ("hots = 3", "did you mean hosts?"),
    ],
)
def test_a_mistake_names_file_key_and_remedy(tmp_path: Path, keys: str, told: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'[job]\nname = "j"\ncollective = "ring"\nbytes = 9\n{keys}\n')
    with pytest.raises(BadInput) as error:
        job_on(file, PLACES, tmp_path)
    assert str(file) in str(error.value)
    assert told in str(error.value)


@pytest.mark.root
def test_the_example_runs_on_a_network_that_is_up() -> None:
    topology = (
        (ROOT / "examples/topology/ring.toml").read_text(encoding="utf-8").replace('"ring"', '"of-jobs"')
    )
    with entrain.up(topology) as network:
        command = [
            sys.executable,
            "-m",
            "entrain.cli",
            "jobs",
            "run",
            str(EXAMPLE),
            "--network",
            network.name,
        ]
        done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"around"' in done.stdout
    assert json.loads(done.stdout)
    assert "around: " in done.stderr


LONG = EXAMPLE.read_text().replace("iterations = 4", "iterations = 100_000")


def trainings(network: str) -> dict[str, Any]:
    with call(choose(network)) as stub:
        return {job.name: job for job in stub.ListTraining(api.ListTrainingRequest()).jobs}


@pytest.mark.root
def test_jobs_are_shown_while_they_run_and_one_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """Another one runs beside the first. What is interrupted leaves nothing, and its name is free again."""
    topology = (ROOT / "examples/topology/ring.toml").read_text().replace('"ring"', '"of-two"')
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(LONG)
    second.write_text(EXAMPLE.read_text().replace('"around"', '"beside"'))
    command = [sys.executable, "-m", "entrain.cli", "jobs", "run"]
    with entrain.up(topology) as network, (tmp_path / "err").open("w") as err:
        options = ["--network", network.name]

        def ran(file: Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, file, *options], cwd=ROOT, capture_output=True, text=True, check=False
            )

        with subprocess.Popen([*command, first, *options], cwd=ROOT, stderr=err) as running:
            try:
                eventually(lambda: "around" in (seen := trainings(network.name)) and seen["around"].done > 3)
                job = trainings(network.name)["around"]
                assert list(job.hosts) == ["h1", "h3", "h4"]
                assert (job.iterations, job.ideal) == (100_000, "bound")
                refused = ran(first)
                assert refused.returncode == 2
                assert "job around already runs on network of-two" in refused.stderr
                assert str(first) in refused.stderr and "another name" in refused.stderr
                assert ran(second).returncode == 0
            finally:
                running.terminate()
        assert trainings(network.name) == {}
        assert "around: " in (tmp_path / "err").read_text()
        first.write_text(EXAMPLE.read_text())
        assert ran(first).returncode == 0
