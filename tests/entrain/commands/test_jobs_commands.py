"""submit, jobs, place --dry-run, circuits and cancel, on a cluster of real switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.entrain.commands.test_commands import ROOT, entrain, entrain_json

NAME = f"cj{os.getpid() % 10000}"
OPTIONS = ("--network", NAME)
COMMAND = (sys.executable, "-m", "entrain.cli")

CLUSTER = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
[cluster]
gpus_per_server = 1
strategy = "vclos"
"""

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of four GPUs that is up."""
    path = tmp_path_factory.mktemp("up") / f"{NAME}.toml"
    path.write_text(CLUSTER)
    up = entrain("up", str(path))
    assert "strategy vclos, queue fifo, 4 GPUs" in up.stdout
    try:
        yield
    finally:
        entrain("down", *OPTIONS)


def job(directory: Path, name: str, gpus: int) -> str:
    """A job file."""
    path = directory / f"{name}.toml"
    path.write_text(f"[job]\ngpus = {gpus}\n")
    return str(path)


def test_a_job_gets_its_network_and_the_next_one_waits_for_it(tmp_path: Path) -> None:
    wide, narrow = job(tmp_path, "wide", 4), job(tmp_path, "narrow", 1)

    plan = entrain_json("place", wide, "--dry-run", *OPTIONS)["placement"]
    assert plan["hosts"] == ["h1", "h2", "h3", "h4"]
    assert (plan["gpus"], plan["leaves"], plan["spines"]) == ([0, 1, 2, 3], [0, 1], [0, 1])
    assert len({(link["leaf"], link["spine"], link["number"]) for link in plan["links"]}) == 4
    shown = entrain("place", wide, "--dry-run", *OPTIONS).stdout
    assert all(word in shown for word in ("h1-h4", "leaf1-leaf2", "leaf2-spine2:0"))

    steps = entrain("submit", wide, "--watch", *OPTIONS).stdout.splitlines()
    assert [step.partition(":")[0] for step in steps if not step.startswith("waits")] == [
        "submitted",
        "reserved",
        "tables",
        "ready",
    ]
    waiting = entrain_json("place", narrow, "--dry-run", *OPTIONS)
    assert waiting["placement"] is None
    assert waiting["waiting"]["cause"] == "gpus"
    assert "GPUs: too few are free" in entrain("place", narrow, "--dry-run", *OPTIONS).stdout

    entrain("submit", narrow, *OPTIONS)
    entrain("submit", narrow, "--name", "third", *OPTIONS)
    watching = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "entrain.cli",
            "submit",
            narrow,
            "--name",
            "last",
            "--watch",
            "--json",
            *OPTIONS,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert watching.stdout is not None
    while (seen := json.loads(watching.stdout.readline()))["waiting"] is None:
        pass
    assert seen["waiting"]["behind"] == "narrow"

    listed = entrain("jobs", *OPTIONS).stdout
    assert all(len(line) <= 80 for line in listed.splitlines())
    assert "behind narrow" in listed
    assert "0 of 4 GPUs are free; strategy vclos, queue fifo" in listed
    document = entrain_json("jobs", *OPTIONS)
    assert [(each["name"], each["phase"]) for each in document["jobs"]] == [
        ("wide", "running"),
        ("narrow", "waiting"),
        ("third", "waiting"),
        ("last", "waiting"),
    ]
    assert document["jobs"][0]["placement"]["links"] == plan["links"]

    assert entrain("cancel", "wide", "--ended", *OPTIONS).stdout == "job wide is ended\n"
    watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert {each["name"]: each["phase"] for each in entrain_json("jobs", "--all", *OPTIONS)["jobs"]} == {
        "wide": "ended",
        "narrow": "running",
        "third": "running",
        "last": "running",
    }
    for name in ("narrow", "third", "last"):
        assert entrain_json("cancel", name, *OPTIONS)["phase"] == "cancelled"


def test_bad_jobs_are_refused_with_key_and_remedy(tmp_path: Path) -> None:
    one = job(tmp_path, "one", 1)
    entrain("submit", one, "--watch", *OPTIONS)
    for file, words in [
        (one, "name: job 'one' is running already; choose another name, or cancel that one"),
        (job(tmp_path, "large", 5), "gpus: 5 is more than the 4 GPUs of the cluster; ask for fewer"),
    ]:
        assert words in entrain("submit", file, *OPTIONS, status=2).stderr
    assert "there is no job 'two'; known are one" in entrain("cancel", "two", *OPTIONS, status=2).stderr
    assert "has no optical circuit switch" in entrain("circuits", *OPTIONS, status=1).stderr
    deploy = ("deploy", "--target", "softswitch", *OPTIONS)
    assert "routes by source" in entrain(*deploy, "--routing", "ecmp", status=2).stderr
    assert all(each["inserted"] == each["deleted"] == 0 for each in entrain_json(*deploy)["switches"])
    entrain("cancel", "one", *OPTIONS)
