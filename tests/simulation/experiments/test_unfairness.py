"""`entrain simulate cassini-unfairness`."""

from __future__ import annotations

import pytest

from simulation.experiments.unfairness import GROUPS, POLICIES, points, run_point
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
