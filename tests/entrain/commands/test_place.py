"""`entrain place`: what it writes can be checked from outside, and wrong files are explained."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

CLUSTER = """
[cluster]
leaves = 4
spines = 4
servers_per_leaf = 2
gpus_per_server = 4
links_per_pair = 2
ocs = true
"""
JOBS = "job,gpus,arrival_s,duration_s,pattern\n"
STRATEGIES = (
    *("ecmp", "balanced-ecmp", "recmp", "source", "least-loaded", "crux", "crux-ecmp", "best", "apart"),
    *("vclos", "ocs-vclos", "ocs-relaxed"),
)


def place(directory: Path, cluster: str, jobs: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the document."""
    (directory / "c.toml").write_text(cluster)
    (directory / "jobs.csv").write_text(jobs)
    files = [str(directory / "c.toml"), "--jobs", str(directory / "jobs.csv")]
    command = [sys.executable, "-m", "entrain.cli", "place", *files, "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def mix(count: int) -> str:
    """Jobs of all sizes and patterns, more than the cluster can hold at once."""
    patterns = ("ring", "hierarchical-ring", "halving-doubling", "all-to-all", "pipeline")
    sizes = (8, 12, 2, 16, 4, 20, 1, 24)
    return JOBS + "".join(
        f"j{number},{sizes[number % 8]},{3 * number},{20 + 7 * (number % 5)},{patterns[number % 5]}\n"
        for number in range(count)
    )


def ends(job: dict[str, Any]) -> set[tuple[str, int, int]]:
    """The ports that a job's circuits join."""
    return {
        (end["kind"], end["switch"], end["port"]) for circuit in job["circuits"] for end in circuit.values()
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [(), ("--queue", "fewest-gpus", "--backfill")], ids=["fifo", "backfill"])
def test_jobs_that_run_together_share_nothing(
    tmp_path: Path, strategy: str, options: tuple[str, ...]
) -> None:
    status, result = place(tmp_path, CLUSTER, mix(24), "--strategy", strategy, *options)
    assert status == 0
    jobs = result["jobs"]
    assert [job["job"] for job in jobs] == [f"j{number}" for number in range(24)]
    assert result["isolated"] == (strategy in ("vclos", "ocs-vclos", "ocs-relaxed"))
    for one, other in itertools.combinations(jobs, 2):
        if max(one["start_s"], other["start_s"]) < min(one["end_s"], other["end_s"]):
            assert not set(one["gpus"]) & set(other["gpus"])
            assert not set(map(tuple, one["links"])) & set(map(tuple, other["links"]))
            assert not ends(one) & ends(other)
    for job in jobs:
        waited = sum(each["to_s"] - each["from_s"] for each in job["waiting"])
        assert waited == pytest.approx(job["start_s"] - job["arrival_s"])
        if result["isolated"] and len(job["leaves"]) > 1:
            assert len(job["links"]) == len(job["gpus"]) or len(ends(job)) == len(job["gpus"])


def test_the_same_files_give_the_same_placements(tmp_path: Path) -> None:
    first = place(tmp_path, CLUSTER, mix(16), "--strategy", "ocs-vclos")
    assert first == place(tmp_path, CLUSTER, mix(16), "--strategy", "ocs-vclos")


@pytest.mark.parametrize("strategy", ["vclos", "ocs-vclos"])
def test_failed_gpus_and_ports_are_not_used(tmp_path: Path, strategy: str) -> None:
    failed = CLUSTER + "[failed]\ngpus = [0]\nuplinks = [[1, 0]]\nspine_ports = [[2, 5]]\n"
    jobs = JOBS + "a,12,0,5,ring\nb,16,0,5,all-to-all\n"
    status, result = place(tmp_path, failed, jobs, "--strategy", strategy)
    assert status == 0
    for job in result["jobs"]:
        assert 0 not in job["gpus"]
        assert not {("leaf", 1, 0), ("spine", 2, 5)} & ends(job)
        if strategy == "vclos":
            assert [1, 0, 0] not in job["links"]  # uplink port 0 of leaf 1
            assert [2, 2, 1] not in job["links"]  # port 5 of spine 2


@pytest.mark.parametrize(
    ("cluster", "jobs", "arguments", "words"),
    [
        (CLUSTER, JOBS + "a,33,0,1,ring\n", (), ("jobs.csv, line 2: gpus:", "33", "32", "ask for fewer")),
        (CLUSTER, JOBS + "a,2,0,1,ring\na,2,0,1,ring\n", (), ("line 3: job:", "line 2", "another name")),
        (CLUSTER, JOBS + "a,2,0,1,rnig\n", (), ("line 2", "pattern", "ring")),
        (CLUSTER, JOBS + "a,two,0,1,ring\n", (), ("line 2", "gpus", "a whole number")),
        (CLUSTER, JOBS + "a,2,-1,1,ring\n", (), ("line 2", "arrival_s", "at least 0")),
        (CLUSTER, JOBS + "a,2,0,0,ring\n", (), ("line 2", "duration_s", "above 0")),
        (CLUSTER, JOBS + "a,2,0,1\n", (), ("line 2", "pattern", "missing")),
        (CLUSTER, JOBS + "a,2,0,1,ring,7\n", (), ("line 2", "more fields", "remove '7'")),
        (CLUSTER, "", (), ("no jobs", "job,gpus,arrival_s,duration_s,pattern")),
        (CLUSTER, "job,gpu,arrival_s,duration_s,pattern\na,2,0,1,ring\n", (), ("line 2", "gpu", "gpus")),
        (CLUSTER, mix(1), ("--strategy", "vclo"), ("--strategy", "'vclo'", "vclos")),
        (CLUSTER, mix(1), ("--queue", "lifo"), ("--queue", "'lifo'", "fifo")),
        (CLUSTER.replace("leaves = 4", "leaves = 0"), mix(1), (), ("c.toml", "leaves", "at least 1")),
        (CLUSTER.replace("spines = 4", ""), mix(1), (), ("c.toml", "spines", "missing")),
        (CLUSTER + "[failed]\ngpus = [32]\n", mix(1), (), ("[failed]", "gpus", "32", "0 to 31")),
        (CLUSTER + "[failed]\nuplinks = [[4, 0]]\n", mix(1), (), ("[failed]", "uplinks", "[4, 0]")),
        (
            CLUSTER.replace("ocs = true", ""),
            mix(1),
            ("--strategy", "ocs-vclos"),
            ("c.toml", "[cluster], ocs", "ocs = true"),
        ),
        (
            CLUSTER.replace("spines = 4", "spines = 1"),
            JOBS + "a,20,0,1,ring\n",
            (),
            ("line 2: gpus", "no virtual Clos for 20 GPUs"),
        ),
    ],
)
def test_a_wrong_file_is_explained(
    tmp_path: Path, cluster: str, jobs: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    status, result = place(tmp_path, cluster, jobs, "--strategy", "vclos", *arguments)
    assert status == 2
    for word in words:
        assert word in result["error"], result["error"]


@pytest.mark.parametrize("columns", ["80", "40"])
def test_times_are_shown_whole_in_a_narrow_terminal_too(tmp_path: Path, columns: str) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    arrival = 1507530000.25
    (tmp_path / "jobs.csv").write_text(f"{JOBS}first,32,{arrival},86400,ring\nsecond,1,{arrival},10,ring\n")
    files = [str(tmp_path / "c.toml"), "--jobs", str(tmp_path / "jobs.csv"), "--strategy", "vclos"]
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "place", *files],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=True,
    )
    for shown in ("1507530000.25", "1507616400.25", "1507616410.25", "86400 "):
        assert shown in done.stdout
    assert "…" not in done.stdout
