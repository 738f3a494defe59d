"""Jobs over circuits: on real switches and an emulated optical circuit switch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.entrain.commands.test_commands import controller_pid, entrain, entrain_json

NAME = f"co{os.getpid() % 10000}"
OPTIONS = ("--network", NAME)

CLUSTER = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
[ocs]
[cluster]
gpus_per_server = 2
server_rate_mbps = 400
strategy = "ocs-vclos"
"""

UNTIL_ANSWERED = ("-c", "1", "-w", "30")
A_FEW = ("-c", "3", "-i", "0.05", "-W", "1")

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path) -> Iterator[None]:
    """A cluster of four GPUs that is up."""
    path = tmp_path / f"{NAME}.toml"
    path.write_text(CLUSTER)
    entrain("up", str(path))
    try:
        yield
    finally:
        entrain("down", *OPTIONS)


def reaches(host: str, address: str, *pings: str) -> bool:
    """Whether a ping is answered, at last; or one of `pings`."""
    children = psutil.Process(controller_pid(NAME)).children(recursive=True)
    [shell] = [child for child in children if child.cmdline()[-1:] == [f"mininet:{host}"]]
    ping = ["mnexec", "-a", str(shell.pid), "ping", "-q", *(pings or UNTIL_ANSWERED), address]
    return subprocess.run(ping, stdout=subprocess.DEVNULL, check=False).returncode == 0


def held() -> dict[str, int]:
    """How many circuits each job has; those of nobody under the empty name."""
    circuits = entrain_json("circuits", *OPTIONS)["circuits"]
    jobs = [each["job"] for each in circuits]
    return {job: jobs.count(job) for job in jobs}


def test_hosts_reach_each_other_over_the_circuits_of_their_job_and_not_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "wide.toml"
    file.write_text("[job]\ngpus = 4\n")
    assert not reaches("h1", "10.2.1.2", *A_FEW)
    assert reaches("h1", "10.1.2.2")  # its server's other GPU, by the link inside the server
    assert held() == {"": 4}  # as wired at first
    said = entrain("submit", str(file), "--watch", *OPTIONS).stdout
    assert "circuits: 2 joined, 2 of them anew" in said
    assert held() == {"wide": 2}  # two leaves are joined directly; what was in the way is gone
    assert "leaf1-eth3" in entrain("circuits", *OPTIONS).stdout
    assert reaches("h1", "10.2.1.2")
    assert reaches("h2", "10.1.1.2")
    entrain("cancel", "wide", *OPTIONS)
    assert not reaches("h1", "10.2.1.2", *A_FEW)
    assert held() == {"": 2}
    again = entrain_json("place", str(file), "--dry-run", *OPTIONS)
    assert again["circuits_changed"] == 0
