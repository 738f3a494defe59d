"""The slot scheduler: Algorithm 1 against all alternatives, Algorithm 2's rules, order and sharing, and the
load table."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.compiled import Floats
from schedulers.slots.host import REDRAW, SPREAD, Parameters, SlotScheduler, rules_of
from schedulers.slots.kernels import plan
from schedulers.slots.roles import Role
from schedulers.slots.table import LoadTable
from tests.schedulers.slots.deciding import decide_one, table, whole_horizon

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
        LINE,
        begin,
        rules_of(Parameters(TAU, partial=partial)),
        schedule,
        np.zeros(k),
        np.zeros(k, np.int64),
    )
    return schedule, complete


def cost(rates: np.ndarray, load: list[float], end: int) -> float:
    return end + float(np.dot(rates, load)) / LINE**2


@settings(max_examples=60)
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


def scheduler(horizon: int = 4) -> SlotScheduler:
    return whole_horizon(TAU, horizon)


def decide(path_load: Floats, headroom: Floats, sent: float, total: float, **flow: Any) -> Floats:
    return decide_one(scheduler(), LINE, path_load, headroom, sent, total, **flow)


def test_a_flow_that_fits_the_horizon_gets_by_one_that_does_not() -> None:
    """The long one holds two slots and not the horizon: the short one has the next ones, and then it goes
    on."""
    table, path = LoadTable(np.full(1, LINE), 4), np.array([0])
    table.update("long", path, decide(*table.ask("long", path), 0.0, 5000.0))
    short = decide(*table.ask("short", path), 0.0, 150.0)
    assert short == pytest.approx([0.0, 0.0, 1000.0, 500.0])
    table.update("short", path, short)
    table.advance(1)
    goes_on = decide(*table.ask("long", path), 100.0, 5000.0)
    assert goes_on == pytest.approx([1000.0, 0.0, 0.0, 0.0])


FREE, ROOM = np.zeros(4), np.full(4, LINE)


def test_a_broadcast_sends_no_more_than_what_is_aggregated() -> None:
    schedule = decide(FREE, ROOM, 10.0, 500.0, role=Role.BROADCAST, behind=30.0)
    assert schedule[0] == pytest.approx(20.0 / TAU)
    assert (schedule[1:] == 0.0).all()


def test_a_broadcast_catches_up_with_what_is_aggregated() -> None:
    """Its path is loaded now, so the plan would wait; the dependency makes it send."""
    load = np.array([4000.0, 0.0, 0.0, 0.0])
    alone = decide(load, ROOM, 0.0, 90.0)
    assert alone[0] == 0.0
    follows = decide(load, ROOM, 0.0, 90.0, role=Role.BROADCAST, behind=50.0)
    assert follows[0] == pytest.approx(500.0)


def test_an_aggregation_catches_up_with_the_broadcasts_within_its_bound() -> None:
    load, room = np.array([4000.0, 0.0, 0.0, 0.0]), np.array([300.0, 1000.0, 1000.0, 1000.0])
    schedule = decide(load, room, 0.0, 90.0, role=Role.AGGREGATION, ahead=80.0)
    assert schedule[0] == pytest.approx(300.0)
    assert schedule.sum() * TAU == pytest.approx(90.0)


def test_a_worker_is_ahead_of_its_server_by_a_chunk_and_a_slot() -> None:
    """Only if the chunk is known: a server may also sum up everything before it sends anything back."""
    known = decide(FREE, ROOM, 120.0, 900.0, role=Role.AGGREGATION, ahead=20.0, chunk=40.0)
    assert known[0] == pytest.approx((20.0 + 40.0 + LINE * TAU - 120.0) / TAU)
    unknown = decide(FREE, ROOM, 120.0, 900.0, role=Role.AGGREGATION, ahead=20.0)
    assert unknown[0] == pytest.approx(LINE)


def test_a_ring_may_lag_by_a_chunk() -> None:
    schedule = decide(FREE, ROOM, 0.0, 400.0, role=Role.RING, behind=0.0, chunk=40.0)
    assert schedule[0] == pytest.approx(40.0 / TAU)


def test_a_dependency_never_plans_more_than_the_flow_has() -> None:
    for role in Role:
        schedule = decide(FREE, ROOM, 90.0, 100.0, role=role, ahead=1e9, behind=1e9)
        assert schedule.sum() * TAU == pytest.approx(10.0)


def test_what_is_not_ready_is_not_planned() -> None:
    for role in (Role.FREE, Role.AGGREGATION):
        schedule = decide(FREE, ROOM, 10.0, 100.0, role=role, ready=60.0, ahead=1e9)
        assert schedule.sum() * TAU == pytest.approx(50.0)


class Path:
    """A flow on a path that nobody plans, and what its scheduler has observed."""

    def __init__(self) -> None:
        self.scheduler = scheduler()
        self.seen = self.scheduler.unobserved(LINE)[None, :]

    def observe(self, planned: float, achieved: float, others: float = 0.0) -> None:
        rates = np.array([[LINE], [planned], [achieved], [others]])
        self.seen = self.scheduler.observed(self.seen, *rates)

    def rate(self, room: Floats = ROOM) -> float:
        return float(decide(FREE, room, 0.0, 1e6, bound=self.seen.max())[0])


def test_the_bound_follows_what_the_path_carried_and_forgets_it() -> None:
    path = Path()
    for achieved in (700.0, 650.0, 650.0):
        path.observe(planned=900.0, achieved=achieved)
    assert path.rate() == pytest.approx(LINE)  # not yet a whole window
    path.observe(planned=900.0, achieved=650.0)
    assert path.rate() == pytest.approx(700.0)
    for _ in range(4):
        path.observe(planned=700.0, achieved=700.0)
    assert path.rate() == pytest.approx(LINE)


def test_who_takes_more_than_half_does_not_push_the_bound_further_down() -> None:
    """Half is left against one flow that nobody plans, if both are fair; to ask for less would not end."""
    path, rate = Path(), LINE
    for _ in range(20):
        path.observe(planned=rate, achieved=0.8 * rate)
        rate = path.rate()
    assert rate == pytest.approx(LINE / 2)


def test_others_plans_come_off_the_bound() -> None:
    path = Path()
    for _ in range(4):
        path.observe(planned=900.0, achieved=600.0, others=100.0)
    assert path.rate(np.full(4, LINE - 200.0)) == pytest.approx(500.0)


lefts = st.floats(1.0, 1e6)


@given(lefts, lefts, st.integers(0, 10_000))
def test_who_has_less_left_decides_before_who_has_twice_as_much(one: float, other: float, slot: int) -> None:
    """Up to 180 slots of the link; beyond that, and within one slot, all are alike."""
    host = SlotScheduler()
    small, large = sorted(min(max(left, LINE * TAU), 180 * LINE * TAU) for left in (one, other))
    draw = np.array([host.draw("small", slot), host.draw("large", slot)])
    ranks = host.ranks(np.array([small, large]), np.full(2, LINE / 0.6), draw, np.full(2, Role.RING))
    assert ((ranks >= 0.0) & (ranks < 1.0)).all()
    if large >= 2 * small:
        assert ranks[0] < ranks[1]


@pytest.mark.parametrize("role", [Role.AGGREGATION, Role.BROADCAST])
def test_flows_that_wait_for_one_another_decide_before_a_ring_with_as_much_left(role: Role) -> None:
    left = np.full(2, 40 * LINE * TAU)
    for draw in ([0.0, 1.0], [1.0, 0.0]):
        roles = np.array([role, Role.RING])
        ranks = SlotScheduler().ranks(left, np.full(2, LINE / 0.6), np.array(draw), roles)
        assert ranks[0] < ranks[1]


def test_all_hosts_know_the_same_order_of_jobs_and_it_changes() -> None:
    """So nobody is the last for ever; each job has a place of its own."""
    hosts = SlotScheduler(), SlotScheduler()
    jobs = [f"job{i}" for i in range(4)]

    def places(host: SlotScheduler, slot: int) -> list[float]:
        draw = np.array([host.draw(job, slot) for job in jobs])
        alike = np.full(len(jobs), Role.RING)
        ranks = host.ranks(np.full(len(jobs), 1e9), np.full(len(jobs), LINE), draw, alike)
        return [float(place) for place in host.places(ranks)]

    slots = range(0, 20 * REDRAW, REDRAW)
    found = [places(hosts[0], slot) for slot in slots]
    assert found == [places(hosts[1], slot + REDRAW - 1) for slot in slots]
    assert all(len(set(each)) == len(jobs) for each in found)
    assert all(0.0 <= place < SPREAD for each in found for place in each)
    assert {each[0] < each[1] for each in found} == {True, False}


@pytest.mark.parametrize(("begin", "turn"), [(0.0, 0.4), (0.25, 0.45)])
def test_before_its_jobs_turn_a_flow_plans_the_present_slot_only(begin: float, turn: float) -> None:
    host = SlotScheduler(Parameters(TAU, horizon=4, reserved=2, payload=1.0, begin=begin, spread=0.5))
    rows = table(LINE, {"total": 1e6, "rank": 0.8})
    for passed, planned in ((turn - 0.01, [LINE, 0.0, 0.0, 0.0]), (turn + 0.01, [LINE, LINE, 0.0, 0.0])):
        these = host.round(rows, np.array([0]), np.zeros((1, 2)), passed)
        assert these.decide(0, FREE, ROOM, ROOM) == pytest.approx(planned)


def test_siblings_share_the_room_by_what_they_have_left() -> None:
    """Also what those of them have planned that are still to decide; others' flows have no part in it."""
    flows: tuple[dict[str, float], ...] = (
        {"total": 3e6, "siblings": 0},
        {"total": 2e6, "sent": 1e6, "siblings": 0},
        {"total": 1e6, "siblings": 2},
    )
    host = SlotScheduler(Parameters(TAU, horizon=4, reserved=2, payload=1.0))
    planned = np.array([[0.0, 0.0], [600.0, 600.0], [0.0, 0.0]])
    these = host.round(table(LINE, *flows), np.arange(3), planned)
    assert these.order.tolist() == [1, 0, 2], "who plans the most for what it has left gives way first"
    assert these.decide(1, FREE, ROOM, ROOM)[:2] == pytest.approx(LINE / 4)
    rest = ROOM - LINE / 4
    assert these.decide(0, FREE, rest, rest)[:2] == pytest.approx(3 * LINE / 4)
    full = np.zeros(4)
    again = host.round(table(LINE, *flows), np.arange(3), planned)
    assert again.decide(0, FREE, full, full)[0] == 0.0, "what it cannot have, it does not plan"
    assert again.decide(2, FREE, ROOM, ROOM)[0] == pytest.approx(LINE)


def test_siblings_share_their_hosts_link_and_not_what_others_leave_of_one_path() -> None:
    """Behind the host, half of the link is left on the first one's path, which the second does not take: the
    first gets all of it."""
    flows: tuple[dict[str, float], ...] = ({"total": 1e6, "siblings": 0}, {"total": 1e6, "siblings": 0})
    host = SlotScheduler(Parameters(TAU, horizon=4, reserved=2, payload=1.0))
    these = host.round(table(LINE, *flows), np.arange(2), np.zeros((2, 2)))
    assert these.decide(0, FREE, ROOM / 2, ROOM)[:2] == pytest.approx(LINE / 2)
    assert these.decide(1, FREE, ROOM / 2, ROOM / 2)[:2] == pytest.approx(LINE / 2)


def test_only_payload_is_planned() -> None:
    host = SlotScheduler(Parameters(TAU, horizon=4, payload=0.9))
    assert decide_one(host, LINE, FREE, ROOM, 0.0, 1e6)[0] == pytest.approx(0.9 * LINE)
    assert decide_one(host, LINE, FREE, ROOM / 2, 0.0, 1e6)[0] == pytest.approx(0.4 * LINE)


def test_a_hastened_end_takes_all_the_room_of_its_slot() -> None:
    host = SlotScheduler(Parameters(TAU, horizon=4, reserved=4, payload=1.0, hasten=True))
    assert decide_one(host, LINE, FREE, ROOM, 0.0, 150.0) == pytest.approx([LINE, LINE, 0.0, 0.0])


def test_flows_stagger_by_the_load_table() -> None:
    table = LoadTable(np.full(3, LINE), 4)
    path_a, path_b = np.array([0, 1]), np.array([1, 2])
    first = decide(*table.ask("a", path_a), 0.0, 200.0)
    table.update("a", path_a, first)
    second = decide(*table.ask("b", path_b), 0.0, 200.0)
    assert first == pytest.approx([1000.0, 1000.0, 0.0, 0.0])
    assert second == pytest.approx([0.0, 0.0, 1000.0, 1000.0])


@settings(max_examples=30)
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
    with pytest.raises(ValueError, match="4 slots"):
        decide(np.zeros(5), np.zeros(5), 0.0, 1.0)
    with pytest.raises(ValueError, match="only moves on"):
        table = LoadTable(np.ones(1))
        table.advance(3)
        table.advance(2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot_s": 0.0},
        {"slot_s": math.nan},
        {"horizon": 0},
        {"reserved": 11},
        {"reserved": 0},
        {"partial": 0},
        {"price": -1.0},
        {"payload": 0.0},
        {"spread": 1.5},
        {"redraw": 0},
        {"classes": 0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        Parameters(**wrong)
