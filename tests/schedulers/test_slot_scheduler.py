"""The slot scheduler: Algorithm 1 against all alternatives, Algorithm 2's rules, the load table."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.slots import Dependency, LoadTable, Role, SlotScheduler, plan

LINE = 1000.0
TAU = 0.1


def run_plan(
    load: list[float], cap: list[float], volume: float, begin: int = 0, partial: int = 2
) -> tuple[np.ndarray, bool]:
    k = len(load)
    schedule = np.full(k, -1.0)
    complete = plan(
        np.array(load),
        np.array(cap),
        volume,
        TAU,
        LINE,
        1.0,
        begin,
        partial,
        schedule,
        np.zeros(k),
        np.zeros(k, np.int64),
    )
    return schedule, complete


def cost(rates: np.ndarray, load: list[float], end: int) -> float:
    return end + float(np.dot(rates, load)) / LINE**2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_plan_is_the_cheapest_of_all_greedy_plans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    load = [float(x) for x in rng.integers(0, 4, 6) * 500.0]
    cap = [float(x) for x in rng.uniform(0, LINE, 6)]
    volume = float(rng.uniform(1.0, 300.0))
    schedule, complete = run_plan(load, cap, volume)
    assert (schedule >= 0.0).all()
    assert (schedule <= np.array(cap) + 1e-9).all()
    costs = []
    for end in range(1, 7):
        left, rates = volume, np.zeros(6)
        for slot in sorted(range(end), key=lambda s: (load[s], s)):
            rates[slot] = min(cap[slot], left / TAU)
            left = max(left - rates[slot] * TAU, 0.0)
        if left <= 1e-9 * volume:
            costs.append(cost(rates, load, end))
    assert complete == bool(costs)
    if complete:
        assert schedule.sum() * TAU == pytest.approx(volume)
        end = max(s for s in range(6) if schedule[s] > 0.0) + 1
        assert cost(schedule, load, end) <= min(costs) + 1e-9
    else:
        assert schedule == pytest.approx([*cap[:2], 0.0, 0.0, 0.0, 0.0])


def test_equal_loads_go_to_the_earlier_slot() -> None:
    schedule, _ = run_plan([0.0] * 4, [LINE] * 4, 150.0)
    assert schedule == pytest.approx([1000.0, 500.0, 0.0, 0.0])


def test_waiting_pays_when_the_path_is_loaded_enough() -> None:
    """With a price of 1, a slot's delay must save more than 1: the sum over several links can."""
    schedule, _ = run_plan([4000.0, 0.0, 0.0, 0.0], [LINE] * 4, 100.0)
    assert schedule == pytest.approx([0.0, 1000.0, 0.0, 0.0])
    schedule, _ = run_plan([900.0, 0.0, 0.0, 0.0], [LINE] * 4, 100.0)
    assert schedule == pytest.approx([1000.0, 0.0, 0.0, 0.0])


def test_what_exceeds_the_horizon_reserves_only_its_next_slots() -> None:
    schedule, complete = run_plan([0.0, 500.0, 0.0], [1000.0, 500.0, 1000.0], 1e6)
    assert not complete
    assert schedule == pytest.approx([1000.0, 500.0, 0.0])
    schedule, _ = run_plan([0.0, 500.0, 0.0], [1000.0, 500.0, 1000.0], 1e6, partial=3)
    assert schedule == pytest.approx([1000.0, 500.0, 1000.0])


def test_a_flow_that_fits_the_horizon_gets_by_one_that_does_not() -> None:
    """The long one holds two slots and not the horizon: the short one has the next ones, and then it goes
    on."""
    table, host, path = LoadTable(np.full(1, LINE), 4), scheduler(), np.array([0])
    table.update("long", path, host.decide("long", *table.ask("long", path), 0.0, 5000.0))
    short = host.decide("short", *table.ask("short", path), 0.0, 150.0)
    assert short == pytest.approx([0.0, 0.0, 1000.0, 500.0])
    table.update("short", path, short)
    table.advance(1)
    goes_on = host.decide("long", *table.ask("long", path), 100.0, 5000.0)
    assert goes_on == pytest.approx([1000.0, 0.0, 0.0, 0.0])


def scheduler(horizon: int = 4) -> SlotScheduler:
    return SlotScheduler(LINE, horizon=horizon, slot_s=TAU)


FREE, ROOM = np.zeros(4), np.full(4, LINE)


def test_a_broadcast_sends_no_more_than_what_is_aggregated() -> None:
    dependency = Dependency(Role.BROADCAST, behind=30.0)
    schedule = scheduler().decide("b", FREE, ROOM, 10.0, 500.0, dependency)
    assert schedule[0] == pytest.approx(20.0 / TAU)
    assert (schedule[1:] == 0.0).all()


def test_a_broadcast_catches_up_with_what_is_aggregated() -> None:
    """Its path is loaded now, so the plan would wait; the dependency makes it send."""
    load = np.array([4000.0, 0.0, 0.0, 0.0])
    alone = scheduler().decide("b", load, ROOM, 0.0, 90.0)
    assert alone[0] == 0.0
    follows = scheduler().decide("b", load, ROOM, 0.0, 90.0, Dependency(Role.BROADCAST, behind=50.0))
    assert follows[0] == pytest.approx(500.0)


def test_an_aggregation_catches_up_with_the_broadcasts_within_its_bound() -> None:
    load, room = np.array([4000.0, 0.0, 0.0, 0.0]), np.array([300.0, 1000.0, 1000.0, 1000.0])
    dependency = Dependency(Role.AGGREGATION, ahead=80.0)
    schedule = scheduler().decide("a", load, room, 0.0, 90.0, dependency)
    assert schedule[0] == pytest.approx(300.0)
    assert schedule.sum() * TAU == pytest.approx(90.0)


def test_a_ring_may_lag_by_a_chunk() -> None:
    dependency = Dependency(Role.RING, behind=0.0, chunk=40.0)
    schedule = scheduler().decide("r", FREE, ROOM, 0.0, 400.0, dependency)
    assert schedule[0] == pytest.approx(40.0 / TAU)


def test_a_dependency_never_plans_more_than_the_flow_has() -> None:
    for role in Role:
        dependency = Dependency(role, ahead=1e9, behind=1e9, chunk=0.0)
        schedule = scheduler().decide("f", FREE, ROOM, 90.0, 100.0, dependency)
        assert schedule.sum() * TAU == pytest.approx(10.0)


def test_the_bound_follows_what_the_path_carried_and_forgets_it() -> None:
    host = scheduler()
    for achieved in (700.0, 650.0, 650.0):
        host.observe("f", planned=900.0, achieved=achieved, others=0.0)
    assert host.decide("f", FREE, ROOM, 0.0, 1e6)[0] == pytest.approx(LINE)  # not yet a whole window
    host.observe("f", planned=900.0, achieved=650.0, others=0.0)
    assert host.decide("f", FREE, ROOM, 0.0, 1e6)[0] == pytest.approx(700.0)
    for _ in range(4):
        host.observe("f", planned=700.0, achieved=700.0, others=0.0)
    assert host.decide("f", FREE, ROOM, 0.0, 1e6)[0] == pytest.approx(LINE)


def test_who_takes_more_than_half_does_not_push_the_bound_further_down() -> None:
    """Half is left against one flow that nobody plans, if both are fair; to ask for less would not end."""
    host = scheduler()
    rate = LINE
    for _ in range(20):
        host.observe("f", planned=rate, achieved=0.8 * rate, others=0.0)
        rate = host.decide("f", FREE, ROOM, 0.0, 1e6)[0]
    assert rate == pytest.approx(LINE / 2)


def test_others_plans_come_off_the_bound() -> None:
    host = scheduler()
    for _ in range(4):
        host.observe("f", planned=900.0, achieved=600.0, others=100.0)
    schedule = host.decide("f", FREE, np.full(4, LINE - 200.0), 0.0, 1e6)
    assert schedule[0] == pytest.approx(500.0)


def test_flows_stagger_by_the_load_table() -> None:
    table, host = LoadTable(np.full(3, LINE), 4), scheduler()
    path_a, path_b = np.array([0, 1]), np.array([1, 2])
    first = host.decide("a", *table.ask("a", path_a), 0.0, 200.0)
    table.update("a", path_a, first)
    second = host.decide("b", *table.ask("b", path_b), 0.0, 200.0)
    assert first == pytest.approx([1000.0, 1000.0, 0.0, 0.0])
    assert second == pytest.approx([0.0, 0.0, 1000.0, 1000.0])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30))
def test_the_load_table_is_the_sum_of_what_flows_announced_last(steps: list[tuple[int, int, int]]) -> None:
    table, k, slot = LoadTable(np.full(4, LINE), 4), 4, 0
    links = [np.array([0, 1]), np.array([1, 2]), np.array([2, 3]), np.array([0, 3])]
    plans: dict[int, dict[int, float]] = {}
    for flow, rate, move in steps:
        slot += move
        table.advance(slot)
        schedule = np.array([i * 10.0 + rate * 100.0 for i in range(k)])
        table.update(flow, links[flow], schedule)
        plans[flow] = {slot + i: float(schedule[i]) for i in range(k)}
        for link, at in itertools.product(range(4), range(slot, slot + k)):
            expected = sum(p.get(at, 0.0) for f, p in plans.items() if link in links[f])
            assert table.table[link, at % k] == pytest.approx(expected)
        load, room = table.ask(flow, links[flow])
        others = [
            sum(p.get(slot, 0.0) for f, p in plans.items() if f != flow and x in links[f])
            for x in links[flow]
        ]
        assert load[0] == pytest.approx(sum(others))
        assert room[0] == pytest.approx(max(LINE - max(others), 0.0))
    for flow in list(plans):
        table.remove(flow)
    assert table.table == pytest.approx(np.zeros((4, k)))


def test_feedback_of_another_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match="4 slots a flow"):
        scheduler().decide("f", np.zeros(5), np.zeros(5), 0.0, 1.0)
    with pytest.raises(ValueError, match="positive"):
        SlotScheduler(math.nan)
    with pytest.raises(ValueError, match="only moves on"):
        table = LoadTable(np.ones(1))
        table.advance(3)
        table.advance(2)
