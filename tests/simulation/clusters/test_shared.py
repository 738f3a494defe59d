"""Jobs in a simulated cluster: links are shared, nobody is faster than alone, shifts separate jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from schedulers.cassini.plan import SLACK
from schedulers.cassini.profile import Profile, up_down
from schedulers.placement.cluster import Cluster
from simulation.clusters import arrivals, network, training
from simulation.clusters.arrivals import ModelJob
from simulation.clusters.models import MODELS
from simulation.clusters.scheduler import Allocation, ClusterScheduler, Ideal, Present, Random
from simulation.clusters.shared import Outcome, SharedCluster
from simulation.clusters.themis import Themis
from simulation.topology import GBIT

HALF = up_down(0.1, 0.1, 42 * GBIT)


class Fixed:
    """Places jobs as told."""

    name = "fixed"
    dedicated = False

    def __init__(self, placement: Allocation) -> None:
        self.placement = placement

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """See ClusterScheduler."""
        return [{job.ident: self.placement[job.ident] for job in jobs}]

    def again(self, now: float) -> float:
        """See ClusterScheduler."""
        return float("inf")


def run(
    jobs: Sequence[ModelJob], scheduler: ClusterScheduler, *, cassini: bool = False, jitter: float = 0.01
) -> Outcome:
    """Run on the testbed."""
    made = SharedCluster(
        jobs, scheduler, network.cluster(), network.testbed(), cassini=cassini, jitter=jitter, seed=1
    )
    return made.run()


def fixed(name: str, profile: Profile, iterations: int = 100) -> ModelJob:
    """A job of two workers with this profile."""
    return ModelJob(name, MODELS["VGG16"], 0, iterations, 2, 0.0, profile)


PAIR = Fixed({"a": (0, 4), "b": (2, 6)})
"""Two jobs whose flows between two racks take the same links."""


def mean(done: Outcome, job: int, key: str = "seconds", skip: int = 3) -> float:
    """The mean of a figure over the iterations of a job after the first ones."""
    return float(done.records[done.records["job"] == job][key][skip:].mean())


def test_the_testbed_has_48_links_and_halves_the_bandwidth_above_racks() -> None:
    names = network.testbed().link_names
    assert len(names) == 2 * 48
    assert sum(name.startswith("r0-") and name.endswith("-up") for name in names) == 2
    switches = {name.rsplit("-", 2)[0] for name in names if name.startswith("pod")}
    assert network.RACKS + len(switches) + 1 == 13


def test_routes_lead_through_matching_links_in_order() -> None:
    net = network.testbed()
    src, dst = np.divmod(np.arange(24 * 24), 24)
    apart = src != dst
    src, dst = src[apart], dst[apart]
    for s, d, route in zip(src, dst, net.routes(src, dst, src), strict=True):
        names = [net.link_names[link] for link in route if link >= 0]
        assert names[0] == f"s{s}-out" and names[-1] == f"s{d}-in"
        assert len(names) == (2 if s // 4 == d // 4 else 4 if s // 8 == d // 8 else 6)


def test_jobs_that_fit_and_are_shifted_take_as_long_as_alone_with_fewer_marks() -> None:
    jobs = [fixed("a", HALF), fixed("b", HALF)]
    plain, shifted = (run(jobs, PAIR, cassini=cassini) for cassini in (False, True))
    assert all(mean(plain, n) > 1.25 * HALF.period for n in (0, 1))
    assert all(mean(shifted, n) < 1.05 * HALF.period for n in (0, 1))
    assert all(mean(shifted, n, "marks") < mean(plain, n, "marks") for n in (0, 1))


def test_without_noise_a_fitting_pair_has_no_marks_and_needs_no_adjustment() -> None:
    done = run([fixed("a", HALF), fixed("b", HALF)], PAIR, cassini=True, jitter=0.0)
    assert mean(done, 0, "marks") == mean(done, 1, "marks") == 0.0
    assert done.adjusted.sum() == 0
    assert mean(done, 0) == pytest.approx(HALF.period * (1 + SLACK), rel=1e-3)


def test_a_link_is_fully_used_while_its_jobs_want_more() -> None:
    long = up_down(0.001, 1.0, 42 * GBIT)
    done = run([fixed("a", long, 10), fixed("b", long, 10)], PAIR, jitter=0.0)
    alone, both = long.bytes / (42 * GBIT), 2 * long.bytes / network.LINK
    assert mean(done, 0, "sent_s") == pytest.approx(both, rel=1e-6)
    assert both > alone


def test_shares_never_exceed_links_and_leave_nobody_short_who_could_get_more() -> None:
    random = np.random.default_rng(7)
    for _ in range(50):
        count, links = 5, 4
        jobs = np.zeros(count, training.JOB)
        jobs["demand"] = random.uniform(0.1, 1.0, count) * (random.random(count) < 0.8)
        flows = random.integers(0, 3, (count, links)).astype(float)
        weight = flows * random.choice([1.0, 0.25], count)[:, None]
        capacity, held = random.uniform(0.3, 1.5, links), np.zeros(links)
        training.share(jobs, np.arange(count), weight, flows, capacity, held)
        load = jobs["rate"] @ weight
        assert (load <= capacity * (1 + 1e-9)).all() and (jobs["rate"] <= jobs["demand"] + 1e-12).all()
        full = load >= capacity * (1 - 1e-9)
        short = jobs["rate"] < jobs["demand"] * (1 - 1e-9)
        assert all((flows[n] > 0)[full].any() for n in np.flatnonzero(short))
        assert (full | (held == 0)).all()


def test_ideal_is_a_lower_bound_for_every_job() -> None:
    jobs = [replace(job, arrival_s=0.0) for job in arrivals.poisson(arrivals.MIXED, 6, 0.9, 24, seed=3)]
    jobs = [replace(job, iterations=100, wanted=min(job.wanted, 4)) for job in jobs]
    ideal = run(jobs, Ideal(), jitter=0.0)
    for scheduler in (Random(), Themis()):
        done = run(jobs, scheduler, jitter=0.0)
        assert (done.finish >= ideal.finish - 1e-6).all()
        assert (done.records["seconds"] >= done.records["alone"] - 1e-6).all()


def test_every_job_does_all_its_work_whatever_it_is_given() -> None:
    jobs = arrivals.poisson(arrivals.MIXED, 8, 1.0, 24, seed=5)
    jobs = [replace(job, iterations=60) for job in jobs]
    for cassini in (False, True):
        done = run(jobs, Themis(), cassini=cassini)
        assert np.isfinite(done.finish).all()
        assert (done.finish >= [job.arrival_s for job in jobs]).all()
        assert set(done.records["job"].tolist()) == set(range(len(jobs)))
