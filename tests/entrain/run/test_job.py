"""`entrain jobs run`: a job on the hosts of a network that is up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import entrain
from entrain.run.job import Place, job_on
from machine.errors import BadInput

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/topology/job.toml"
PLACES = [
    Place("h1", "10.0.0.1", "s1", 11),
    Place("h2", "10.0.0.2", "s1", 12),
    Place("h3", "10.0.0.3", "s2", 13),
    Place("h4", "10.0.0.4", "s3", 14),
]


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
    topology = (ROOT / "examples/topology/ring.toml").read_text().replace('"ring"', '"of-jobs"')
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
