"""The slotted transport: collectives' dependencies, load tables, rivals on the same jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from machine.errors import BadInput
from schedulers.coflow.rivals import FairSharing, Mcs
from schedulers.slots.roles import Role
from simulation.collectives import (
    Pipelined,
    in_parts,
    parameter_server,
    push_pull,
    ring,
    ring_flows,
    ring_steps,
    training_job,
)
from simulation.engine import Simulation
from simulation.jobs import Compute, chain, coflow
from simulation.scheduled import ScheduledTransport
from simulation.slotted import SIMULATED, SlotPolicy, SlottedTransport
from simulation.topology import switch, tree
from simulation.turns import TurnsTransport
from simulation.workloads import cluster_jobs

SLOTS = replace(SIMULATED, slot_s=0.2)


def test_a_parameter_servers_flows() -> None:
    flows = parameter_server([0, 1], [1, 2], 8.0)
    assert flows is not None
    # Worker 1 and server 1 share a host.
    assert flows.bytes == pytest.approx(6 * 4.0)
    assert [Role(int(r)) for r in flows.role] == [Role.AGGREGATION] * 3 + [Role.BROADCAST] * 3
    push, pull = push_pull([0, 1], [1, 2], 8.0)
    assert push.bytes == pull.bytes == pytest.approx(12.0)


def test_a_rings_flows() -> None:
    flows = ring([3, 1, 2], 9.0)
    assert flows is not None
    assert flows.size == pytest.approx([12.0] * 3)
    assert flows.src[flows.upstream].tolist() == [2, 3, 1]
    steps = ring_steps([3, 1, 2], 9.0)
    assert len(steps) == 4
    assert sum(s.bytes for s in steps) == pytest.approx(flows.bytes)
    flows_in_turn = ring_flows([3, 1, 2], 9.0)
    assert [(int(c.src[0]), int(c.dst[0]), float(c.size[0])) for c in flows_in_turn] == [
        (3, 1, 12.0),
        (1, 2, 12.0),
        (2, 3, 12.0),
    ]
    assert ring([4, 4], 9.0) is None
    assert parameter_server([4], [4], 9.0) is None


TRANSPORTS: dict[str, Callable[..., SlottedTransport]] = {
    **{
        f"{policy}, cross traffic {cross}": functools.partial(SlottedTransport, policy=policy, cross=cross)
        for policy in get_args(SlotPolicy)
        for cross in (0.0, 0.3)
    },
    "turns": TurnsTransport,
    "turns, taking back": functools.partial(TurnsTransport, take_back=True),
}


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_flows_obey_their_dependencies_at_every_slot(kind: str) -> None:
    """At each boundary: broadcasts within what is aggregated, ring flows within their predecessor and a
    chunk."""
    flows = [parameter_server([0, 1, 2], [3, 4], 60.0), ring([1, 3, 5, 0], 80.0)]
    jobs = [training_job(f"{i}", 0.3 * i, 0.5, [c], 3) for i, c in enumerate(flows * 2)]
    transport = TRANSPORTS[kind](switch(6, 10.0), parameters=SLOTS, check=True)
    original, checks = transport.decide, 0

    def decide(now: float) -> None:
        nonlocal checks
        original(now)
        table, coflows = transport._flows, transport._coflows
        for first, last in zip(coflows.ints("first"), coflows.ints("last"), strict=True):
            sent = table.size[first:last] - table.remaining[first:last]
            role, chunk = transport._decided["role"][first:last], transport._decided["chunk"][first:last]
            begin, end = (transport._upstream[first:last] - first).T
            for i in np.flatnonzero(role == Role.BROADCAST):
                group = slice(begin[i], end[i])
                assert (role[group] == Role.AGGREGATION).all()
                assert sent[i] <= sent[group].min() + 1e-6
                checks += 1
            for i in np.flatnonzero(role == Role.RING):
                assert end[i] == begin[i] + 1
                assert sent[i] <= sent[begin[i]] + chunk[i] + 1e-6
                checks += 1

    transport.decide = decide  # type: ignore[method-assign]
    outcome = Simulation(jobs, transport).run()
    assert checks > 100
    assert all(
        r.jct >= j.lower_bound(transport.topology) - 1e-9 for r, j in zip(outcome.jobs, jobs, strict=True)
    )


def test_the_load_tables_are_empty_after_the_last_job() -> None:
    jobs = [job.pipelined() for job in cluster_jobs(20, servers=40, arrival_window_s=3.0, iterations=(2, 3))]
    transport = SlottedTransport(tree((10, 2, 2)), "slots", check=True)
    Simulation(jobs, transport).run()
    assert np.abs(transport._table).max() <= 1e-3


def test_the_same_seed_gives_the_same_result_and_another_does_not() -> None:
    jobs = [job.pipelined() for job in cluster_jobs(30, servers=40, arrival_window_s=3.0, iterations=(2, 3))]

    def finishes(seed: int) -> list[float]:
        return [r.finish for r in Simulation(jobs, SlottedTransport(tree((10, 2, 2)), seed=seed)).run().jobs]

    assert finishes(1) == finishes(1)
    assert finishes(1) != finishes(2)


def test_two_flows_on_one_link_are_staggered_not_shared() -> None:
    """Both cross their rack's link: the second waits, so the mean is 1.5 transfers instead of 2."""
    network = tree((2, 4), (100.0, 10.0))
    jobs = [training_job(f"{i}", 0.0, 0.0, [push_pull([i], [2], 20.0)[0]], 1) for i in range(2)]
    slots = Simulation(jobs, SlottedTransport(network, "slots", replace(SLOTS, slot_s=0.5), check=True)).run()
    fair = Simulation(jobs, SlottedTransport(network, "fair", replace(SLOTS, slot_s=0.5), check=True)).run()
    assert sorted(r.jct for r in slots.jobs) == pytest.approx([2.0, 4.0])
    assert [r.jct for r in fair.jobs] == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize("flows", [parameter_server([0, 1], [2, 3], 1e9), ring([0, 1, 2], 1e9)])
def test_a_job_alone_takes_hardly_longer_than_its_links_need(flows: Pipelined) -> None:
    """Beside what a start and an end within a slot cost, two slots of an iteration."""
    job, network = training_job("alone", 0.0, 0.5, [flows], 4), switch(4, 1e9)
    transport = SlottedTransport(network, parameters=replace(SLOTS, slot_s=0.015), check=True)
    jct = Simulation([job], transport).run().jobs[0].jct
    assert jct <= job.lower_bound(network) + 4 * 2 * 0.015


@pytest.mark.parametrize("parts", [1, 4])
def test_a_server_sends_back_each_part_once_it_has_it_of_all_workers(parts: int) -> None:
    """So one part more than the model passes one after the other: 1 s for the model at the link's rate."""
    flows, network = parameter_server([0, 1], [2, 3], 1e9, parts), switch(4, 1e9)
    alone_s = 1.0 + 1.0 / parts
    job = in_parts("alone", 0.0, 0.0, flows, parts, 1)
    assert job.bytes == pytest.approx(4e9)
    (fluid,) = Simulation([job], ScheduledTransport(network, FairSharing(), check=True)).run().jobs
    assert fluid.jct == pytest.approx(alone_s) == pytest.approx(job.lower_bound(network))
    slotted = SlottedTransport(network, parameters=replace(SLOTS, slot_s=0.015), check=True)
    (slots,) = Simulation([training_job("alone", 0.0, 0.0, [flows], 1)], slotted).run().jobs
    assert alone_s - 0.015 <= slots.jct <= alone_s + 2 * parts * 0.015


def test_workers_of_one_server_send_it_their_parts_side_by_side() -> None:
    """Its link carries the model twice. Then one part for each is left to send back, unless one worker has
    sent all before the other could begin: then nearly half of everything is."""
    parts, slot_s = 4, 0.015
    flows, network = parameter_server([0, 1], [2], 1e9, parts), switch(3, 1e9)
    slotted = SlottedTransport(network, parameters=replace(SLOTS, slot_s=slot_s), check=True)
    (slots,) = Simulation([training_job("alone", 0.0, 0.0, [flows], 1)], slotted).run().jobs
    assert slots.jct <= 2.0 + 2.0 / parts + 2 * parts * slot_s


def test_an_equal_share_that_a_flow_cannot_use_goes_to_nobody() -> None:
    """Host 0 sends to 2 and 3, host 1 to 3 three times: 0 to 3 gets a quarter of host 3's link.

    Host 0's other flow has the rest of its link with max-min fairness, and half with equal shares."""
    works = coflow([(0, 3, 1e9)] + [(1, 3, 1e9)] * 3), coflow([(0, 2, 1.5)])
    jobs = [chain(str(i), 0.0, [work]) for i, work in enumerate(works)]
    expected: dict[SlotPolicy, float] = {"fair": 1.5 / 7.5, "equal": 1.5 / 5.0}
    for policy, finish in expected.items():
        transport = SlottedTransport(switch(4, 10.0), policy, SLOTS, check=True)
        assert Simulation(jobs, transport).run(until=1.0).jobs[1].finish == pytest.approx(finish)


def test_jobs_that_fit_the_horizon_are_not_held_up_by_those_that_do_not() -> None:
    """One long transfer, then three short ones over the same link: if the long one takes the whole horizon,
    each of them waits for it."""
    network = switch(2, 10.0)
    works = [(0.0, 200.0), (0.3, 2.0), (0.3, 2.0), (0.3, 2.0)]
    jobs = [chain(str(i), at, [coflow([(0, 1, size)])]) for i, (at, size) in enumerate(works)]
    kept = Simulation(jobs, SlottedTransport(network, parameters=SLOTS, check=True)).run()
    all_slots = replace(SLOTS, reserved=10, partial=10)
    whole = Simulation(jobs, SlottedTransport(network, parameters=all_slots, check=True)).run()
    assert max(r.finish for r in kept.jobs) == pytest.approx(max(r.finish for r in whole.jobs))
    assert all(r.jct < 1.8 for r in kept.jobs[1:])
    assert sum(job.jct for job in kept.jobs) < sum(job.jct for job in whole.jobs)


def test_mcs_runs_blind_and_stays_within_the_links() -> None:
    jobs = [
        job.staged()
        for job in cluster_jobs(30, servers=40, arrival_window_s=3.0, iterations=(2, 3), domain=40)
    ]
    transport = ScheduledTransport(tree((10, 2, 2)), Mcs(), interval=0.06, blind=True, check=True)
    outcome = Simulation(jobs, transport).run()
    assert all(r.jct > 0.0 for r in outcome.jobs)


@pytest.mark.parametrize(
    "options",
    [{"policy": "magic"}, {"rounds": 0}, {"cross": 1.0}],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        SlottedTransport(switch(2, 1.0), **options)  # type: ignore[arg-type]


def test_a_cluster_that_is_too_small_is_refused() -> None:
    with pytest.raises(BadInput, match="hold only"):
        cluster_jobs(100, servers=10)
    with pytest.raises(BadInput, match="groups"):
        cluster_jobs(1, servers=25, domain=10)


@pytest.mark.parametrize(("policy", "ends"), [("slots", [0.4, 1.6]), ("fair", [0.3, 1.5])])
def test_slots_go_on_while_the_network_is_idle(policy: SlotPolicy, ends: list[float]) -> None:
    """The second coflow is valid 1 s after the first one's end, slots later; it sends from the next slot on.

    Half a slot's bytes take all of a slot (slots) or its first half (fair)."""
    jobs = [chain("a", 0.05, [coflow([(0, 1, 1.0)]), Compute(1.0), coflow([(1, 0, 1.0)])])]
    outcome = Simulation(jobs, SlottedTransport(switch(2, 10.0), policy, SLOTS, check=True)).run()
    assert [c.finish for c in outcome.coflows] == pytest.approx(ends)
