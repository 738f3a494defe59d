"""The host's slot scheduler: when flows decide, what they follow, and what they do without an answer."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from hostbpf.carriers.carriers import Feedback
from hostbpf.clock import SlotClock
from hostbpf.scheduling.loads import RATE_UNIT, HostOnly, PathLoads, Wait
from hostbpf.scheduling.monitor import Direction, FlowProgress, Phase, Role
from hostbpf.scheduling.thread import GRAIN, PATIENCE, ROUNDS_MAX, HostScheduler, rounds
from machine.patience import patience
from schedulers.compiled import Floats
from schedulers.slots.host import BEYOND, CROWDED_S, FLOOR, PAYLOAD, RESERVED, STARVED_S
from tests.hostbpf.taps import wait_until
from wire.flow import Flow
from wire.slot_header import LANES, Kind, SlotHeader

SLOT_NS = 60_000_000
SLOT_S = SLOT_NS / 1e9
PARTS = rounds(SlotClock(SLOT_NS, 0))
"""Of a slot, in each of which flows decide while their link has room."""
CROWDED, STARVED = round(CROWDED_S / SLOT_S), round(STARVED_S / SLOT_S)
"""Slots without room that a flow bears."""
LINE = 62_500_000.0  # 500 Mbit/s
FIRST = 1000
FLOW = Flow("10.0.0.1", 20000, "10.0.0.2", 7000)
OTHER = Flow("10.0.0.1", 20001, "10.0.0.3", 7001)
ARRIVING = Flow("10.0.0.9", 20002, "10.0.0.1", 7000)


@dataclass
class Told:
    """What the scheduler does on its host."""

    schedules: dict[Flow, tuple[int, Floats]] = field(default_factory=dict)
    paused: dict[Flow, tuple[int, float]] = field(default_factory=dict)
    begun: list[Flow] = field(default_factory=list)
    woken: list[Flow] = field(default_factory=list)
    onward: dict[Flow, int] = field(default_factory=dict)
    announced: dict[Flow, float] = field(default_factory=dict)

    def begin(self, flow: Flow) -> None:
        self.begun.append(flow)

    def end(self, flow: Flow) -> None:
        self.release(flow)

    def limit(self, flow: Flow, slot: int, rates: Sequence[float]) -> None:
        self.schedules[flow] = slot, np.array(rates)

    def pause(self, flow: Flow, slot: int, rate: float) -> None:
        self.schedules.pop(flow, None)
        self.paused[flow] = slot, rate

    def wake(self, flow: Flow) -> None:
        self.woken.append(flow)

    def release(self, flow: Flow) -> None:
        self.schedules.pop(flow, None)
        self.paused.pop(flow, None)

    def set_onward(self, received: Flow, carried: int) -> None:
        self.onward[received] = carried

    def arriving(self, received: Flow, slot: int) -> float | None:
        return self.announced.get(received)


class Silent(HostOnly):
    """A path that answers only while it is `up`, and behind the host's link has `room`."""

    up = True
    room: float | Floats = math.inf

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        for answer in super().answers(timeout_s) if self.up else ():
            yield answer._replace(headroom=np.minimum(answer.headroom, self.room))


class Bench:
    """A scheduler whose time, progress and host are the test's."""

    def __init__(self, wait: Wait = time.sleep, turns_from: float = 0.0) -> None:
        self.now_ns = FIRST * SLOT_NS
        self.epoch_ns = 0
        self.flows: list[FlowProgress] = []
        self.readings = 0
        self.still = False
        self.refused: Counter[str] = Counter()
        self.host = Told()
        self.loads = Silent(LINE)
        self.scheduler = HostScheduler(
            self,
            self.loads,
            self.host,
            lambda: SlotClock(SLOT_NS, self.epoch_ns),
            LINE,
            wait=wait,
            turns_from=turns_from,
            now_ns=lambda: self.now_ns,
        )

    def read(self) -> list[FlowProgress]:
        """Of each flow a byte has gone since the last reading, unless it is `still`."""
        self.readings += not self.still
        return [replace(each, carried=each.carried + self.readings) for each in self.flows]

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.round()
            self.now_ns += SLOT_NS // ROUNDS_MAX

    def slot(self) -> None:
        """The rounds up to the end of the next whole slot, in which every flow decides."""
        end = (self.now_ns - self.epoch_ns) // SLOT_NS + 2
        while (self.now_ns - self.epoch_ns) // SLOT_NS < end:
            self.rounds()

    def rates(self, flow: Flow = FLOW) -> Floats:
        return self.host.schedules[flow][1]

    def send(self, count: int, part: float = 1.0) -> None:
        """Rounds after each of which all flows send what they have planned, or a part of it."""
        for _ in range(count):
            self.rounds()
            sent = [round(self.planned(each.flow) * SLOT_S / ROUNDS_MAX * part) for each in self.flows]
            self.flows = [
                replace(each, done=each.done + more, carried=each.carried + more)
                for each, more in zip(self.flows, sent, strict=True)
            ]

    def planned(self, flow: Flow) -> float:
        """The flow's rate in the present slot."""
        slot, rate = self.host.paused.get(flow, (0, 0.0))
        slot, rates = self.host.schedules.get(flow, (slot, np.full(LANES, rate)))
        ahead = self.now_ns // SLOT_NS - slot
        return float(rates[ahead]) if ahead < len(rates) else 0.0


def sending(flow: Flow = FLOW, total: int = 10_000_000, **changes: object) -> FlowProgress:
    entry = FlowProgress(
        "job", 1, flow, Direction.SENT, Role.FREE, 0, Phase.COMMUNICATING, 0, total, total, 0, 0, 0, 0
    )
    return replace(entry, **changes)  # type: ignore[arg-type]


def receiving(done: int, role: Role, flow: Flow = ARRIVING, total: int = 10_000_000) -> FlowProgress:
    return sending(flow, total, direction=Direction.RECEIVED, role=role, done=done, carried=done, ready=total)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def volume(rates: Floats) -> float:
    """Bytes of a whole schedule; in its last slot a flow is let go as fast as the path allows."""
    return float(rates.sum()) * SLOT_S


SLOT_BYTES = round(PAYLOAD * LINE * SLOT_S)


def test_a_flow_plans_what_it_has_to_send_when_its_iteration_begins(bench: Bench) -> None:
    bench.flows = [sending(phase=Phase.COMPUTING)]
    bench.rounds(2)
    assert not bench.host.schedules
    bench.flows = [sending()]
    bench.rounds()
    slot, rates = bench.host.schedules[FLOW]
    assert slot == FIRST
    assert rates[0] == pytest.approx(PAYLOAD * LINE)
    assert bench.host.begun == [FLOW]


def test_the_next_slot_is_planned_at_the_jobs_place_and_none_after_it(bench: Bench) -> None:
    bench.flows = [sending(total=10**9)]
    bench.rounds()
    assert not bench.rates()[1:].any()  # those who are before it have not decided yet
    bench.rounds(ROUNDS_MAX - 1)
    assert bench.rates()[:2] == pytest.approx(PAYLOAD * LINE)
    assert not bench.rates()[2:].any()


def test_late_turns_leave_the_next_slot_open_until_they_come() -> None:
    bench = Bench(turns_from=0.5)
    bench.flows = [sending(total=10**9)]
    for _ in range(ROUNDS_MAX // 2 + 1):  # before half of the slot is over
        bench.rounds()
        assert not bench.rates()[1:].any()
    bench.rounds(ROUNDS_MAX - ROUNDS_MAX // 2 - 1)
    assert bench.rates()[:2] == pytest.approx(PAYLOAD * LINE)


@pytest.mark.parametrize("slot_ms", [5, 15, 20, 30, 60, 1000])
def test_a_slot_has_several_checks_that_are_long_against_a_round_trip(slot_ms: int) -> None:
    number = rounds(SlotClock(slot_ms * 1_000_000, 0))
    assert 2 <= number <= ROUNDS_MAX
    assert slot_ms / number >= min(10.0, slot_ms / 2)


def test_a_flow_that_is_not_held_back_decides_once_per_slot(bench: Bench) -> None:
    for number in range(8 * ROUNDS_MAX):
        done = number * round(SLOT_BYTES / ROUNDS_MAX)
        bench.flows = [sending(total=10**9, done=done, carried=done)]
        bench.rounds()
    assert bench.scheduler.counts["decisions"] <= 9


def test_rates_of_a_slot_that_is_half_over_hold_for_what_is_left(bench: Bench) -> None:
    bench.now_ns += SLOT_NS // 2
    bench.flows = [sending(total=round(PAYLOAD * LINE * SLOT_S / 4))]
    bench.rounds()
    assert bench.rates()[0] * SLOT_S / 2 >= PAYLOAD * LINE * SLOT_S / 4
    assert not bench.rates()[1:].any()


def test_flows_of_a_host_do_not_plan_the_same_headroom(bench: Bench) -> None:
    bench.flows = [sending(total=8_000_000), sending(OTHER, 8_000_000)]
    bench.slot()
    assert (bench.rates() + bench.rates(OTHER))[:2] == pytest.approx(PAYLOAD * LINE, abs=2 * RATE_UNIT)


def test_flows_of_a_job_that_send_alike_share_what_there_is(bench: Bench) -> None:
    """A parameter server can send back only what all parts of the sum have come for."""
    bench.flows = [
        sending(total=8_000_000, role=Role.AGGREGATION, group=1),
        sending(OTHER, 4_000_000, role=Role.AGGREGATION, group=2),
    ]
    bench.slot()
    assert bench.rates()[1] == pytest.approx(2 * bench.rates(OTHER)[1], rel=0.02)
    assert (bench.rates() + bench.rates(OTHER))[1] == pytest.approx(PAYLOAD * LINE, abs=2 * RATE_UNIT)


def test_flows_of_a_job_are_even_again_when_one_was_ahead(bench: Bench) -> None:
    first, second = (sending(each, 10**9, role=Role.AGGREGATION) for each in (FLOW, OTHER))
    bench.flows = [first]
    bench.send(2 * ROUNDS_MAX)
    bench.flows = [*bench.flows, second]
    bench.send(3 * ROUNDS_MAX)
    for _ in range(10 * ROUNDS_MAX):
        bench.send(1)
        assert bench.rates()[:2] == pytest.approx(bench.rates(OTHER)[:2], rel=0.05)


def test_only_what_is_ready_is_planned(bench: Bench) -> None:
    bench.flows = [sending(ready=2_000_000)]
    bench.rounds()
    assert 2_000_000 <= volume(bench.rates()) < 2_000_000 + SLOT_BYTES


def test_a_flow_that_waits_for_data_leaves_its_slots_to_others_meanwhile(bench: Bench) -> None:
    bench.flows = [sending(ready=2_000_000)]
    bench.rounds()
    waiting = sending(ready=2_000_000, done=2_000_000, carried=2_000_000)
    bench.flows = [waiting, sending(OTHER)]
    bench.rounds()
    assert FLOW not in bench.host.schedules
    assert bench.rates(OTHER)[0] == pytest.approx(PAYLOAD * LINE)
    bench.flows = [replace(waiting, ready=10_000_000), sending(OTHER)]
    bench.rounds()
    assert FLOW in bench.host.schedules


def test_a_slow_flow_takes_over_what_another_gives_back_in_the_same_slot(bench: Bench) -> None:
    bench.flows = [sending(), sending(OTHER, pid=2, job="another")]
    bench.rounds()
    fast, slow = sorted((FLOW, OTHER), key=lambda flow: -bench.rates(flow)[0])
    assert bench.rates(slow)[0] < 0.1 * LINE
    bench.flows = [each for each in bench.flows if each.flow == slow]
    bench.rounds()
    assert bench.host.schedules[slow][0] == FIRST
    assert bench.rates(slow)[0] == pytest.approx(PAYLOAD * LINE)
    assert fast not in bench.host.schedules


@pytest.mark.parametrize(
    "entry",
    [sending(phase=Phase.COMPUTING), sending(done=10_000_000, carried=10_000_000)],
    ids=["phase", "done"],
)
def test_at_the_end_of_an_iteration_the_plan_is_taken_back(bench: Bench, entry: FlowProgress) -> None:
    bench.flows = [sending()]
    bench.rounds()
    bench.flows = [entry]
    bench.rounds()
    assert not bench.host.schedules
    bench.flows = [entry, sending(OTHER)]
    bench.rounds()
    assert bench.rates(OTHER)[0] == pytest.approx(PAYLOAD * LINE)


def test_a_flow_that_has_ended_is_forgotten(bench: Bench) -> None:
    bench.flows = [sending()]
    bench.rounds()
    bench.flows = []
    bench.rounds()
    assert not bench.host.schedules
    bench.flows = [sending()]
    bench.rounds()
    assert bench.host.begun == [FLOW, FLOW]


def test_a_ring_flow_plans_its_iteration_while_its_predecessor_keeps_up(bench: Bench) -> None:
    ring = sending(role=Role.RING, ready=SLOT_BYTES, total=3 * SLOT_BYTES, chunk=SLOT_BYTES)
    bench.flows = [ring, receiving(0, Role.RING, total=3 * SLOT_BYTES)]
    bench.host.announced[ARRIVING] = PAYLOAD * LINE
    bench.slot()
    assert bench.rates()[:2] == pytest.approx(PAYLOAD * LINE)


def test_a_ring_flow_plans_no_more_than_its_chunk_ahead_of_its_predecessor(bench: Bench) -> None:
    chunk = SLOT_BYTES // 4
    ring = sending(role=Role.RING, ready=chunk, total=10 * SLOT_BYTES, chunk=chunk)
    bench.flows = [ring, receiving(0, Role.RING)]
    bench.rounds()
    assert volume(bench.rates()) <= chunk + GRAIN + SLOT_BYTES / 10
    bench.host.announced[ARRIVING] = PAYLOAD * LINE / 4
    bench.slot()
    assert bench.rates()[0] * SLOT_S >= chunk


def test_a_flow_whose_predecessor_announces_keeps_its_plan_while_it_waits(bench: Bench) -> None:
    """What comes next is on its way: giving the slots back between two parts would lose them to others."""
    waiting = sending(
        role=Role.RING, ready=1000, total=3 * SLOT_BYTES, done=1000, carried=1000, chunk=SLOT_BYTES
    )
    bench.flows = [waiting, receiving(1000, Role.RING, total=3 * SLOT_BYTES)]
    bench.rounds()
    assert FLOW not in bench.host.schedules
    bench.host.announced[ARRIVING] = PAYLOAD * LINE
    bench.rounds()
    assert bench.rates().any()


def test_who_has_less_left_decides_first(bench: Bench) -> None:
    bench.flows = [sending(total=40_000_000), sending(OTHER, 400_000, pid=2, job="another")]
    bench.rounds()
    assert bench.rates(OTHER)[0] * SLOT_S >= 400_000
    assert not bench.rates(OTHER)[1:].any()


def test_a_broadcast_waits_for_the_slowest_aggregation(bench: Bench) -> None:
    slow = Flow("10.0.0.8", 20002, "10.0.0.1", 7000)
    broadcast = sending(role=Role.BROADCAST, ready=1_000_000)
    bench.flows = [
        broadcast,
        receiving(4_000_000, Role.AGGREGATION),
        receiving(1_000_000, Role.AGGREGATION, slow),
    ]
    bench.host.announced = {ARRIVING: 50e6, slow: 10e6}
    bench.rounds()
    assert 1_000_000 + 10e6 * SLOT_S <= volume(bench.rates()) < 1_000_000 + 10e6 * SLOT_S + SLOT_BYTES


def test_a_worker_does_not_run_ahead_of_what_its_server_sends_back(bench: Bench) -> None:
    """It knows that from what it gets back, even if nobody tells it."""
    chunk, sent = 1_000_000, 3_000_000
    flow = sending(role=Role.AGGREGATION, chunk=chunk, done=sent, carried=sent)
    bench.flows = [flow, receiving(0, Role.BROADCAST)]
    bench.rounds()
    assert 0.0 < volume(bench.rates()) <= chunk + GRAIN + LINE * SLOT_S - sent
    bench.flows = [flow, receiving(sent, Role.BROADCAST)]
    bench.rounds()
    assert volume(bench.rates()) > SLOT_BYTES


def test_workers_hear_how_far_the_server_has_broadcast(bench: Bench) -> None:
    bench.still = True
    bench.flows = [
        sending(role=Role.BROADCAST, done=100, carried=700),
        sending(OTHER, role=Role.BROADCAST, done=300, carried=900),
        receiving(1000, Role.AGGREGATION),
    ]
    bench.rounds()
    assert bench.host.onward == {ARRIVING: 900}


def test_without_answers_the_last_plan_then_a_share_then_tcp_and_back(bench: Bench) -> None:
    bench.flows = [sending(total=30_000_000)]
    bench.rounds()
    planned = bench.host.schedules[FLOW]
    bench.loads.up = False
    bench.rounds(ROUNDS_MAX - 1)
    assert bench.host.schedules[FLOW] is planned
    while bench.scheduler.counts["unanswered"] < PATIENCE:
        bench.rounds()
        assert bench.rates().any()
    bench.slot()
    assert not bench.host.schedules
    assert any("left to TCP" in event for event in bench.scheduler.events)
    bench.loads.up = True
    bench.slot()
    assert volume(bench.rates()) > 0
    assert any("answers again" in event for event in bench.scheduler.events)
    assert bench.scheduler.counts["recovered"] == 1


def test_a_new_flow_without_an_answer_gets_an_equal_share_from_the_second_slot_on(bench: Bench) -> None:
    bench.loads.up = False
    bench.flows = [sending(), sending(OTHER)]
    bench.rounds(ROUNDS_MAX - 1)
    assert not bench.host.schedules
    bench.slot()
    assert bench.rates()[:2] == pytest.approx(PAYLOAD * LINE / 2)
    assert not bench.rates()[2:].any()


@pytest.mark.parametrize("step_s", [5, -5])
def test_a_clock_step_holds_nobody_back(bench: Bench, step_s: int) -> None:
    bench.flows = [sending(total=10**9)]
    bench.slot()
    bench.epoch_ns -= step_s * 10**9
    bench.rounds()
    slot, rates = bench.host.schedules[FLOW]
    assert slot == SlotClock(SLOT_NS, bench.epoch_ns).slot(bench.now_ns - SLOT_NS // ROUNDS_MAX)
    assert rates[0] > 0
    assert bench.scheduler.counts["clock_steps"] == 1


def test_a_path_that_carries_less_than_planned_bounds_the_next_plans(bench: Bench) -> None:
    carried = 0
    planned = []
    for _ in range(10 * ROUNDS_MAX):  # the path carries six tenths of the line rate
        bench.flows = [sending(total=10**9, done=carried, carried=carried)]
        bench.rounds()
        planned.append(bench.rates()[0])
        carried += round(0.6 * LINE * SLOT_S / ROUNDS_MAX)
    assert min(planned) < 0.7 * LINE


def test_a_flow_for_which_there_is_no_room_waits(bench: Bench) -> None:
    bench.flows = [sending(total=10**9)]
    bench.slot()
    bench.flows = [sending(total=10**9), sending(OTHER, 10**9, pid=2, job="another")]
    bench.rounds()
    assert not bench.rates(OTHER)[0]


@pytest.mark.parametrize(
    ("ahead", "patience"),
    [(LANES, CROWDED // BEYOND), (RESERVED, CROWDED)],
    ids=["far ahead", "as hosts plan"],
)
def test_what_others_announce_for_long_and_do_not_send_is_taken(
    bench: Bench, ahead: int, patience: int
) -> None:
    bench.loads.room = np.where(np.arange(LANES) < ahead, 0.0, np.inf)
    bench.flows = [sending(total=10**10)]
    bench.send(patience * ROUNDS_MAX)
    assert not bench.rates().any()
    bench.send(2 * ROUNDS_MAX)
    for slot in range(4 * CROWDED):
        if slot % CROWDED == 0:  # there is room now and then
            bench.loads.room, before = math.inf, bench.loads.room
        bench.send(ROUNDS_MAX)
        bench.loads.room = before
        assert bench.planned(FLOW) == pytest.approx(PAYLOAD * LINE)
        assert FLOW not in bench.host.schedules  # nothing is announced


def test_what_others_announce_and_send_is_left_to_them_until_a_flow_starves(bench: Bench) -> None:
    """Then each gets half."""
    bench.loads.room = np.where(np.arange(LANES) < RESERVED, 0.0, np.inf)
    bench.flows = [sending(total=10**10)]
    planned = []
    for _ in range(2 * STARVED * ROUNDS_MAX):
        bench.rounds()
        rate = bench.planned(FLOW)
        planned.append(rate / (PAYLOAD * LINE))
        sent = round(min(rate, PAYLOAD * LINE / 2.0) * SLOT_S / ROUNDS_MAX)
        (flow,) = bench.flows
        bench.flows = [replace(flow, done=flow.done + sent, carried=flow.carried + sent)]
    early, late = np.array_split(planned, 2)
    assert np.mean(early > 0.0) < 0.1
    assert min(late[2 * ROUNDS_MAX :]) == pytest.approx(FLOOR)
    assert np.mean(late > 0.6) < 0.1


def test_a_flow_begins_at_a_rate_until_it_has_decided(bench: Bench) -> None:
    """It may not put a whole window at once into queues which others have planned to use."""
    bench.flows = [sending(phase=Phase.COMPUTING)]
    for _ in range(12 * ROUNDS_MAX):
        bench.rounds()
        slot, rate = bench.host.paused[FLOW]
        assert 0 < rate <= PAYLOAD * LINE
        assert slot <= (bench.now_ns - 1) // SLOT_NS < slot + LANES
    bench.flows = [sending()]
    bench.rounds()
    assert bench.rates()[0] == pytest.approx(PAYLOAD * LINE)


def test_a_flow_that_stands_still_though_it_may_send_is_woken(bench: Bench) -> None:
    bench.still = True
    for done in (0, 1_000_000, 2_000_000):
        bench.flows = [sending(done=done, carried=done)]
        bench.rounds(2)
    assert not bench.host.woken
    bench.rounds(4)
    assert bench.host.woken == [FLOW]
    bench.flows = [sending(OTHER, done=5, carried=5, ready=5)]
    bench.rounds(6)
    assert bench.host.woken == [FLOW]


def test_a_flow_that_had_to_be_silent_has_not_stood_still(bench: Bench) -> None:
    """Others had the slots. When its own begins, a flow needs a moment to put its first bytes on the link."""
    bench.still = True
    bench.flows = [sending(total=10**9)]
    bench.loads.room = 0.0
    bench.slot()
    bench.loads.room = math.inf
    while not bench.planned(FLOW):
        bench.rounds()
    bench.rounds()
    assert not bench.host.woken
    bench.rounds(3)
    assert bench.host.woken == [FLOW]


def test_others_have_the_slots_of_a_flow_that_stands_still_until_it_goes_on(bench: Bench) -> None:
    """Its receiver does not read, say: what it plans, it cannot send."""
    bench.still = True
    bench.flows = [sending(total=10**9)]
    bench.rounds(ROUNDS_MAX)
    assert FLOW not in bench.host.schedules
    assert bench.scheduler.rests(FLOW)
    bench.still = False
    bench.flows = [sending(OTHER, 10**9, job="other", pid=2), *bench.flows]
    bench.slot()
    assert bench.rates()[1] + bench.rates(OTHER)[1] == pytest.approx(PAYLOAD * LINE, abs=2 * RATE_UNIT)


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_what_becomes_of_the_links_time_is_told(bench: Bench, part: float) -> None:
    """Whether a flow sends what it has scheduled, or a part of it. For what it schedules after its last byte,
    it has no data."""
    bench.flows = [sending(total=20 * SLOT_BYTES)]
    count = 8 * ROUNDS_MAX
    bench.send(count, part)
    sent = bench.flows[0].carried / (PAYLOAD * LINE)
    bench.flows = [replace(bench.flows[0], phase=Phase.COMPUTING)]
    bench.rounds(2)
    link = bench.scheduler.link
    assert link.wanted == pytest.approx(count * SLOT_S / ROUNDS_MAX)
    assert link.scheduled <= link.wanted * 1.001
    assert link.scheduled - link.behind - link.no_data - link.still == pytest.approx(sent, abs=1e-3)
    assert link.behind == pytest.approx((1.0 - part) * link.scheduled, abs=SLOT_S)
    assert -1e-3 <= link.no_data <= SLOT_S


@contextlib.contextmanager
def running(bench: Bench) -> Iterator[threading.Event]:
    """Within, the scheduler's thread takes rounds; set the event to end it."""
    stop = threading.Event()
    thread = threading.Thread(target=bench.scheduler.run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def test_answers_that_take_long_are_awaited_for_longer_than_a_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s, timeouts, answers = SLOT_S / PARTS, [], bench.loads.answers

    def late(timeout_s: float) -> Iterator[PathLoads]:
        timeouts.append(timeout_s)
        return (each._replace(delay_s=took_s) for each in answers(timeout_s))

    monkeypatch.setattr(bench.loads, "answers", late)
    bench.flows = [sending(total=10**9)]
    for _ in range(20):
        bench.slot()
    assert timeouts[0] < took_s < timeouts[-1] < 2.5 * took_s


def test_a_flow_that_begins_to_send_decides_before_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """While all rest, rounds are far apart: here an hour."""
    monkeypatch.setattr("hostbpf.scheduling.thread.IDLE_SLOTS", round(3600 / SLOT_S))
    waiting, feedback = threading.Event(), threading.Event()

    def wait(timeout_s: float) -> None:
        waiting.set()
        if feedback.wait(timeout_s):
            feedback.clear()
            bench.scheduler.begins(Feedback(FLOW, SlotHeader(kind=Kind.FEEDBACK)))

    bench = Bench(wait)
    bench.flows = [sending(phase=Phase.COMPUTING)]
    bench.rounds()
    assert bench.scheduler.rests(FLOW)
    with running(bench):
        assert waiting.wait(patience(10))
        bench.flows = [sending()]
        feedback.set()
        wait_until(lambda: FLOW in bench.host.schedules)
    assert not bench.scheduler.rests(FLOW)


def test_what_is_said_is_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.scheduler.say("x\n\x1b[2Kroot wrote")
    assert list(bench.scheduler.events) == [r"x\n\x1b[2Kroot wrote"]
    assert capsys.readouterr().err == "entrain-agent: x\\n\\x1b[2Kroot wrote\n"


def test_an_error_in_a_round_is_said_and_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> list[FlowProgress]:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(bench, "read", wrong)
    bench.flows = [sending()]
    with running(bench):
        wait_until(lambda: bench.scheduler.counts["failed_turns"] > 0)
        monkeypatch.undo()
        wait_until(lambda: bench.scheduler.counts["decisions"] > 0)
    assert any("nobody thought of this" in event for event in bench.scheduler.events)
    assert "Traceback" in capsys.readouterr().err


def test_flows_of_a_link_with_room_decide_once_in_each_part_of_a_slot(bench: Bench) -> None:
    """Rounds at other jobs' turns are not theirs."""
    bench.loads.room = 0.3 * LINE
    bench.flows = [sending(total=10**9), sending(OTHER, 10**9, job="other")]
    bench.slot()
    decisions = bench.scheduler.counts["decisions"]
    for part in range(1, PARTS):
        for _ in range(10):
            bench.scheduler.round()
        bench.now_ns += SLOT_NS // PARTS
        assert 2 * part <= bench.scheduler.counts["decisions"] - decisions <= 2 * (part + 2)


def test_flows_that_fill_their_link_decide_once_in_a_slot(bench: Bench) -> None:
    """What one of them could get more, another had to give."""
    bench.flows = [sending(total=10**9), sending(OTHER, 10**9, job="other")]
    bench.slot()
    before = bench.scheduler.counts["decisions"]
    bench.send(10 * ROUNDS_MAX)
    assert 2 * 9 <= bench.scheduler.counts["decisions"] - before <= 2 * 11
