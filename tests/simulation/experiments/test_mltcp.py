"""`entrain simulate mltcp-two-jobs`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.experiments.mltcp import POLICIES, points, run_point
from simulation.results import Iterations


def _results(limit: int | None, model: str) -> dict[tuple[str, int], Iterations]:
    base = {"experiment": "mltcp-two-jobs", "limit": limit, "seed": 0}
    chosen = [point for point in points(base, POLICIES) if point["model"] == model]
    found = {}
    for point in chosen:
        figures = run_point(point).figures
        assert isinstance(figures, Iterations)
        found[point["policy"], point["sending_percent"]] = figures
    return found


def _settled_after(figures: Iterations) -> int:
    assert figures.settled_after is not None
    return figures.settled_after


def test_fluid_jobs_settle_with_mltcp_only() -> None:
    found = _results(20, "fluid")
    for percent in (45, 50, 60):
        assert _settled_after(found["mltcp", percent]) <= 6
        assert found["fair", percent].settled_after is None
        assert found["mltcp", percent].best_iteration_s == max(0.5, 2 * 0.5 * percent / 100)
    assert found["fair", 50].mean_to_best == pytest.approx(1.49)


def test_windows_settle_where_the_link_leaves_room() -> None:
    found = _results(30, "dctcp")
    assert _settled_after(found["mltcp", 45]) < 20
    assert found["fair", 45].settled_after is None
    ours, theirs = (found[policy, 45].lost_or_marked for policy in ("mltcp", "fair"))
    assert ours is not None
    assert theirs is not None
    assert ours < theirs / 2


def test_command_writes_summary_and_jobs(tmp_path: Path) -> None:
    command = "simulate mltcp-two-jobs --limit 4 --policy mltcp --workers 1 --json --out"
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", *command.split(), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert len(summary["points"]) == 18
    assert all(point["mean_to_best"] >= 1.0 for point in summary["points"])
    with (tmp_path / "jobs.csv").open(newline="") as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 36
    assert all(float(job["jct_s"]) > 0.99 * float(job["lower_bound_s"]) for job in jobs)


def test_policies_of_other_experiments_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "simulate", "mltcp-two-jobs", "--policy", "parrot"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "known are mltcp, fair" in done.stderr
