"""`entrain simulate cassini-unfairness`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from simulation import output
from simulation.experiments.registry import EXPERIMENTS
from simulation.experiments.unfairness import GROUPS, POLICIES, points, run_point, timeline_points
from simulation.results import Unfairness

Found = dict[tuple[str, str], Unfairness]


@pytest.fixture(scope="module")
def found() -> Found:
    """What the fluid model says of each group and policy."""
    base = {"experiment": "cassini-unfairness", "limit": 32, "seed": 0}
    fluid = [point for point in points(base, POLICIES) if point["model"] == "fluid"]
    figures = {(point["group"], point["policy"]): run_point(point).figures for point in fluid}
    return {key: each for key, each in figures.items() if isinstance(each, Unfairness)}


def test_the_score_says_beforehand_whom_unfairness_helps(found: Found) -> None:
    """In a group that scores nearly 1 nobody loses; in the others somebody does."""
    scores = [found[group, "fair"].score for group in GROUPS]
    assert min(scores) < 0.85
    for group, score in zip(GROUPS, scores, strict=True):
        fair, unfair = (found[group, policy].iterations_s for policy in ("fair", "unfair"))
        gains = [before / after for before, after in zip(fair, unfair, strict=True)]
        assert (min(gains) > 0.995) == (score > 0.95), (group, score, gains)


def test_two_equal_jobs_gain_what_the_thesis_measured(found: Found) -> None:
    """DLRM: 1301 ms when sharing is fair, and 1001 and 1019 ms when it is not."""
    fair, unfair = (found["dlrm dlrm", policy] for policy in ("fair", "unfair"))
    assert fair.iterations_s == pytest.approx((1.301, 1.301), rel=0.01)
    assert fair.settled_after is None
    assert unfair.iterations_s == pytest.approx((1.001, 1.019), rel=0.02)
    assert unfair.settled_after is not None
    assert unfair.settled_after < 16
    assert fair.first_gbit_s[0] == pytest.approx(fair.first_gbit_s[1])
    first, second = unfair.first_gbit_s
    assert 1.05 < first / second < 2.0
    assert unfair.marks_per_iteration < fair.marks_per_iteration / 2


def test_a_timeline_shows_iterations_drift_apart_and_is_written(tmp_path: Path) -> None:
    """Figure 3.2: with fair sharing both jobs always send at the same time. With unfair sharing they meet for
    a shorter time in each iteration."""
    base = {"experiment": "cassini-timeline", "limit": 10, "seed": 0}
    todo = [point for point in timeline_points(base, ("fair", "unfair")) if point["model"] == "fluid"]
    results = [run_point(point) for point in todo]
    for point, result in zip(todo, results, strict=True):
        assert result.timeline is not None
        first, second = (np.array(rates) > 0.0 for rates in result.timeline.gbit_s)
        ends = np.cumsum(result.timeline.iterations_s[0]) / result.timeline.bin_s
        ends = ends[ends < len(first)].astype(int)
        together = [int(part.sum()) for part in np.split(first & second, ends)[: len(ends)]]
        if point["policy"] == "fair":
            assert max(together) - min(together) <= 2
        else:
            assert together == sorted(together, reverse=True)
            assert together[-1] < together[0] / 2
    experiment = EXPERIMENTS["cassini-timeline"]
    output.write(tmp_path, output.summarise(experiment, todo, results), results)
    with (tmp_path / "iterations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 10
    assert (tmp_path / "cassini-timeline.png").stat().st_size > 10_000
    with (tmp_path / "rates.csv").open() as file:
        assert max(float(row["gbit_s"]) for row in csv.DictReader(file)) <= 42.0 * 1.001
