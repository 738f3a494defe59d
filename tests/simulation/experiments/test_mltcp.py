"""`entrain simulate mltcp-two-jobs`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.experiments.mltcp import POLICIES, points, run_point


def _results(limit: int | None, model: str) -> dict[tuple[str, int], dict[str, Any]]:
    base = {"experiment": "mltcp-two-jobs", "limit": limit, "seed": 0}
    chosen = [point for point in points(base, POLICIES) if point["model"] == model]
    return {(point["policy"], point["sending_percent"]): run_point(point) for point in chosen}


def test_fluid_jobs_settle_with_mltcp_only() -> None:
    found = _results(20, "fluid")
    for percent in (45, 50, 60):
        assert found["mltcp", percent]["settled_after"] <= 6
        assert found["fair", percent]["settled_after"] is None
        assert found["mltcp", percent]["best_iteration_s"] == max(0.5, 2 * 0.5 * percent / 100)
    assert found["fair", 50]["mean_to_best"] == pytest.approx(1.49)


def test_windows_settle_where_the_link_leaves_room() -> None:
    found = _results(30, "dctcp")
    assert found["mltcp", 45]["settled_after"] < 20
    assert found["fair", 45]["settled_after"] is None
    assert found["mltcp", 45]["lost_or_marked"] < found["fair", 45]["lost_or_marked"] / 2


def test_command_writes_summary_and_jobs(tmp_path: Path) -> None:
    command = "simulate mltcp-two-jobs --limit 4 --policy mltcp --workers 1 --json --out"
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", *command.split(), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert len(summary["points"]) == 12
    assert all(point["mean_to_best"] >= 1.0 for point in summary["points"])
    with (tmp_path / "jobs.csv").open(newline="") as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 24
    assert all(float(job["jct_s"]) > 0.99 * float(job["lower_bound_s"]) for job in jobs)


def test_policies_of_other_experiments_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "simulate", "mltcp-two-jobs", "--policy", "parrot"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "known are mltcp, fair" in done.stderr
