"""The queue: orders, backfilling, and the reasons for which jobs wait."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.placement.cluster import Cluster, Port, Request, empty, reserve
from schedulers.placement.queue import ORDERS, Job, Outcome, Queue, run
from schedulers.placement.strategies import STRATEGIES, Strategy

CLUSTER = Cluster(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2, ocs=True)
"""16 GPUs."""


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs that fit into `CLUSTER` when alone, in any order of arrival."""
    return [
        Job(
            Request(f"j{number}", draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))),
            draw(st.integers(0, 20)),
            draw(st.integers(1, 10)),
        )
        for number in range(draw(st.integers(1, 12)))
    ]


def one(name: str, gpus: int, arrival_s: float, duration_s: float, deadline_s: float | None = None) -> Job:
    return Job(Request(name, gpus), arrival_s, duration_s, deadline_s)


def starts(given: list[Job], order: str = "fifo", backfill: bool = False) -> dict[str, float]:
    done = run(given, empty(CLUSTER), STRATEGIES["vclos"], order, backfill)
    return {outcome.job.request.job: outcome.start_s for outcome in done.outcomes}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda each: each.name)
@given(given_jobs=jobs(), order=st.sampled_from(sorted(ORDERS)), backfill=st.booleans())
@settings(max_examples=40)
def test_whatever_runs_together_fits_together_and_each_wait_has_a_cause(
    strategy: Strategy, given_jobs: list[Job], order: str, backfill: bool
) -> None:
    state = empty(strategy.cluster(CLUSTER))
    done = run(given_jobs, state, strategy, order, backfill).outcomes
    assert [outcome.job for outcome in done] == given_jobs

    def at_once(moment: float) -> list[Outcome]:
        return [outcome for outcome in done if outcome.start_s <= moment < outcome.end_s]

    for outcome in done:
        together = at_once(outcome.start_s)
        gpus = [gpu for each in together for gpu in each.placement.gpus]
        ports = [
            end for each in together for end in zip(each.placement.leaves, each.placement.ports, strict=False)
        ]
        assert len(set(gpus)) == len(gpus)
        assert len(set(ports)) == len(ports)
        assert outcome.end_s == outcome.start_s + outcome.job.duration_s
        edges = [outcome.job.arrival_s, *(each.to_s for each in outcome.waiting)]
        assert edges == [*(each.from_s for each in outcome.waiting), outcome.start_s]
        for before, after in itertools.pairwise(outcome.waiting):
            assert (before.cause, before.behind) != (after.cause, after.behind)


@given(jobs())
@settings(max_examples=100)
def test_without_backfilling_jobs_start_in_the_order_of_arrival(given_jobs: list[Job]) -> None:
    done = run(given_jobs, empty(CLUSTER), STRATEGIES["ocs-vclos"]).outcomes
    in_order = sorted(done, key=lambda outcome: outcome.job.arrival_s)
    assert all(one.start_s <= other.start_s for one, other in itertools.pairwise(in_order))


def test_orders_differ_in_who_comes_first() -> None:
    given_jobs = [
        one("first", 16, 0, 10),
        one("wide", 16, 1, 1, deadline_s=100),
        one("long", 8, 2, 50),
        one("urgent", 16, 3, 5),
    ]
    assert starts(given_jobs, order="fifo") == {"first": 0, "wide": 10, "long": 11, "urgent": 61}
    assert starts(given_jobs, order="edf") == {"first": 0, "urgent": 10, "long": 15, "wide": 65}
    assert starts(given_jobs, order="fewest-gpus") == {"first": 0, "long": 10, "wide": 60, "urgent": 61}


def test_backfilling_uses_what_the_first_job_leaves_and_never_delays_it() -> None:
    given_jobs = [
        one("running", 8, 0, 10),
        one("first", 16, 1, 10),
        one("short", 4, 2, 8),  # done when `first` can start
        one("long", 2, 3, 30),  # would hold `first` up
    ]
    assert starts(given_jobs) == {"running": 0, "first": 10, "short": 20, "long": 20}
    assert starts(given_jobs, backfill=True) == {"running": 0, "first": 10, "short": 2, "long": 20}


def test_a_job_that_leaves_room_beside_the_first_one_may_outlast_its_start() -> None:
    given_jobs = [one("running", 12, 0, 10), one("first", 8, 1, 10), one("long", 4, 2, 100)]
    assert starts(given_jobs, backfill=True) == {"running": 0, "first": 10, "long": 2}


def test_causes_are_gpus_the_network_and_the_job_in_front() -> None:
    taken = [
        placement
        for placement in [STRATEGIES["vclos"].place(empty(CLUSTER), Request("other", 2))]
        if not isinstance(placement, str)
    ]
    state = reserve(empty(CLUSTER), taken[0])
    done = run(
        [one("a", 12, 0, 10), one("b", 12, 1, 10), one("c", 2, 2, 1)], state, STRATEGIES["vclos"]
    ).outcomes
    assert [(each.cause, each.from_s, each.to_s) for each in done[1].waiting] == [("gpus", 1, 10)]
    assert [(each.cause, each.behind) for each in done[2].waiting] == [("queue", "b")]


def test_a_job_waits_for_the_network_where_gpus_would_suffice() -> None:
    half = Cluster(leaves=4, spines=2, servers_per_leaf=2, gpus_per_server=2)  # a link for every other GPU
    done = run([one("a", 8, 0, 10), one("b", 8, 1, 10)], empty(half), STRATEGIES["vclos"])
    assert [(each.cause, each.from_s, each.to_s) for each in done.outcomes[1].waiting] == [("network", 1, 10)]
    assert done.failed_attempts["network"] > 0


@pytest.mark.parametrize("backfill", [False, True])
def test_what_has_failed_holds_up_only_those_that_need_it(backfill: bool) -> None:
    queue = Queue(empty(CLUSTER), STRATEGIES["vclos"], backfill=backfill)
    queue.exclude((), [Port("leaf", leaf, port) for leaf in range(4) for port in range(4)])
    sizes = {"wide": 8, "leaf": 4, "whole": 16, "near": 2}
    given_jobs = [one(name, gpus, 0, 10) for name, gpus in sizes.items()]
    for index, job in enumerate(given_jobs):
        queue.submit(index, job)
    assert [outcome.placement.job for _, outcome in queue.start(0)] == ["leaf", "near"]
    assert {each.cause for each in queue.waiting(0).values() if each} == {"failure"}
    queue.exclude((), ())
    assert [outcome.placement.job for _, outcome in queue.start(5)] == ["wide"]
    assert [each and each.cause for each in queue.waiting(5).values()] == ["gpus"]


def test_a_job_that_can_never_start_is_refused() -> None:
    with pytest.raises(ValueError, match="job big: cannot start even when no other job runs"):
        run([one("big", 17, 0, 1)], empty(CLUSTER), STRATEGIES["best"])


@pytest.mark.parametrize("backfill", [False, True])
def test_an_owner_has_a_share_and_beyond_it_holds_nobody_up(backfill: bool) -> None:
    queue = Queue(empty(CLUSTER), STRATEGIES["ecmp"], backfill=backfill, share=4)
    owners = {"a1": "ann", "a2": "ann", "a3": "ann", "b1": "bob", "root": ""}
    sizes = {"a1": 2, "a2": 3, "a3": 2, "b1": 4, "root": 8}
    for index, (name, owner) in enumerate(owners.items()):
        queue.submit(index, Job(Request(name, sizes[name]), 0, 10, owner=owner))
    assert [outcome.placement.job for _, outcome in queue.start(0)] == ["a1", "a3", "b1", "root"]
    assert [each and each.cause for each in queue.waiting(0).values()] == ["share"]
    queue.end(0)
    assert queue.start(1) == []
    queue.end(2)
    assert [outcome.placement.job for _, outcome in queue.start(2)] == ["a2"]
