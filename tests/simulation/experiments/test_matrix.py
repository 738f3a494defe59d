"""`entrain simulate matrix`: the same jobs under each routing and policy."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.cassini.plan import SLACK
from simulation.experiments.matrix import (
    CLUSTER,
    POLICIES,
    RATE,
    ROUTINGS,
    crossed,
    placed,
    points,
    run_point,
    score,
)
from simulation.results import Remedy
from simulation.tenancy import ClusterNetwork

Found = dict[tuple[int, str, str], Remedy]
NETWORK = ClusterNetwork(CLUSTER, rate=RATE)


@pytest.fixture(scope="module")
def found() -> Found:
    """Short runs of every routing and policy, at the least and the highest load."""
    base = {"experiment": "matrix", "limit": 8, "seed": 0, "placements": 2}
    result = {}
    for point in points(base, POLICIES):
        if point["sending_percent"] != 45:
            figures = run_point(point).figures
            assert isinstance(figures, Remedy)
            result[point["sending_percent"], point["routing"], point["policy"]] = figures
    return result


def test_no_job_is_faster_than_alone(found: Found) -> None:
    for figures in found.values():
        assert 1.0 - 1e-9 <= figures.mean_to_alone <= figures.p99_to_alone + 1e-9
        assert figures.jct_to_alone >= 1.0 - 1e-9


def test_with_vclos_at_most_one_job_is_on_a_link_and_nothing_is_marked(found: Found) -> None:
    for (_, routing, policy), figures in found.items():
        if routing == "vclos":
            assert figures.jobs_on_a_link == 1
            assert figures.marks_per_iteration == 0.0
            assert policy == "slots" or figures.mean_to_alone < 1.02
        else:
            assert figures.jobs_on_a_link > 1


@pytest.mark.parametrize("routing", ["ecmp", "source"])
def test_jobs_that_fit_are_marked_less_once_they_are_shifted(found: Found, routing: str) -> None:
    """At a score of 1 Cassini leaves nothing to share; MLTCP gets there by itself, after some iterations."""
    none, mltcp, cassini = (found[25, routing, policy] for policy in ("none", "mltcp", "cassini"))
    assert none.score > 0.99
    assert none.mean_to_alone > 1.05
    assert cassini.mean_to_alone < 1.0 + 2 * SLACK
    assert cassini.marks_per_iteration < none.marks_per_iteration / 10
    assert mltcp.mean_to_alone < none.mean_to_alone
    assert mltcp.marks_per_iteration < none.marks_per_iteration


@pytest.mark.parametrize("routing", ["ecmp", "source"])
def test_no_policy_makes_jobs_fit_that_do_not(found: Found, routing: str) -> None:
    assert found[65, routing, "none"].score < 0.7
    none = found[65, routing, "none"].mean_to_alone
    for policy in POLICIES:
        assert found[65, routing, policy].mean_to_alone > 1.1
    assert found[65, routing, "cassini"].mean_to_alone <= 1.02 * none, "it leaves them alone"


@pytest.mark.parametrize("draw", range(3))
def test_routings_differ_in_uplinks_only(draw: int) -> None:
    every = [placed(NETWORK, routing, 45, draw, 0) for routing in ROUTINGS]
    for same in zip(*every, strict=True):
        first = same[0]
        for job in same:
            assert (job.compute_s, job.start_s) == (first.compute_s, first.start_s)
            np.testing.assert_array_equal(job.work.src, first.work.src)
            np.testing.assert_array_equal(job.work.dst, first.work.dst)


def test_flows_of_one_job_never_meet() -> None:
    """Else a job would not send at the link's rate when it is alone."""
    for routing in ROUTINGS:
        for job in placed(NETWORK, routing, 45, 0, 0):
            assert job.work.routes is not None
            links = job.work.routes.ravel()
            assert len(np.unique(links)) == len(links)


def test_a_link_carries_the_jobs_that_cross_it() -> None:
    jobs = placed(NETWORK, "vclos", 45, 0, 0)
    assert all(len(link.jobs) == 1 for link in crossed(jobs, NETWORK))
    assert score(jobs, NETWORK) == 1.0
