"""The slot scheduler of one host at work (flow-scheduling paper, IV-C): the thread that drives
`schedulers.slots.host` with real feedback.

Each job's turn comes at its place in a slot, the same on all hosts: the less it has left to send, the
earlier. Then its flows decide: they ask for the loads of their paths, plan this slot and the next one, and
announce that. So on every link all flows of a job decide before those of another, or all after them; else
each job would wait for the other somewhere. A flow that begins to send decides at once. While the host's
link has room, flows also decide between turns, for what is left of the present slot.

A schedule limits a flow only for as long as it says. If this thread stops renewing it, the flow is free.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from hostbpf.carriers.carriers import Feedback
from hostbpf.clock import SlotClock
from hostbpf.scheduling.loads import LoadSource, PathLoads, Wait
from hostbpf.scheduling.monitor import Direction, FlowProgress, Phase
from hostbpf.urgent import urgent
from machine.errors import BadInput, EntrainError
from machine.explain import suggestion
from machine.plugins import extended
from machine.text import escaped
from schedulers.compiled import Floats
from schedulers.slots.host import (
    BEGIN,
    FLOW,
    GROUP,
    SCHEDULERS,
    SMALLEST_FIRST,
    Doubt,
    Parameters,
    Round,
    SlotScheduler,
    warm_up,
)
from schedulers.slots.roles import Role
from wire.flow import Flow
from wire.slot_header import LANES

ROUNDS_MIN, ROUNDS_MAX = 2, 5
"""Fewest and most rounds of decisions in a slot, beside those at jobs' turns."""
ROUND_NS = 15_000_000
"""Least length of a round of slots that have room for more than `ROUNDS_MIN`: long against a round trip, and
against what a round takes of a processor."""
PHASES = 0.7
"""Part of a round over which hosts spread theirs; later ones would be answered in the next slot."""
ANSWER_PART = 0.9
"""Part of a round for which answers are awaited; on long paths it is `ANSWER_TRIPS`, if that is longer."""
ANSWER_TRIPS = 2.0
"""Mean times of an answer of late for which answers are awaited at least."""
MEAN_OF = 8
"""Answers over which that mean is taken."""
IDLE_SLOTS = 2
"""Slots between rounds while no flow has anything to send."""
PATIENCE = 4
"""Slots without an answer from the path after which a flow is left to TCP."""
SHARED = 2
"""Slots of an equal share that a flow takes without an answer: this one, and the next up to its turn."""
GRAIN = 128 * 1024
"""Bytes in which progress advances: what a socket takes at once (TCP_NOTSENT_LOWAT)."""
LEAST_PART = 0.05
"""Part of a slot that counts as left when less is, because rates for less would mean nothing."""
FULL = 0.9
"""Part of the host's link below which its flows' schedules leave room: then they decide in every round."""
STILL_NS = 15_000_000
"""Time in which a flow may send after which it stands still if nothing of it has gone, though two grains
could have."""
START = 0.9
"""Part of the link that a flow may use from when it has something to send until it decides, unannounced."""
RENEWED = 4
"""Slots before its end in which that limit is renewed."""
SAME = 1e-3
"""Part of the link by which a new schedule must differ from the old one to replace it."""
STOPPED_WITHIN_S = 0.1
"""Longest wait before the thread looks whether it shall stop."""
EVENTS = 200
"""Number of latest events that the report keeps."""
SAMPLES = 4096
"""Number of latest delays that the report's quantiles are taken of."""


# Python calls a function for each name of an enumeration's member, and rounds ask for them often.
_SENT, _COMMUNICATING = Direction.SENT, Phase.COMMUNICATING
_FREE, _AGGREGATION, _BROADCAST = Role.FREE, Role.AGGREGATION, Role.BROADCAST
_NO_RATES: Floats = np.zeros(LANES)


class Progress(Protocol):
    """Where the flows' progress comes from: `hostbpf.scheduling.monitor.Monitor`."""

    refused: Counter[str]

    def read(self) -> list[FlowProgress]:
        """The progress of this host's flows now."""


class Host(Protocol):
    """What the scheduler does on its host: `hostbpf.agent.agent.Agent`."""

    def begin(self, flow: Flow) -> None:
        """Let `flow` announce what it plans."""

    def end(self, flow: Flow) -> None:
        """Limit `flow` no more, and take back what it has announced."""

    def limit(self, flow: Flow, slot: int, rates: Sequence[float]) -> None:
        """Let `flow` send at `rates` (K,) bytes/s from `slot` on, freely afterwards, and announce that."""

    def pause(self, flow: Flow, slot: int, rate: float) -> None:
        """Let `flow` send at `rate` bytes/s in the K slots from `slot` on, and announce nothing any more."""

    def wake(self, flow: Flow) -> None:
        """Have `flow` send what it may."""

    def release(self, flow: Flow) -> None:
        """Limit `flow` no more, and take back what it has announced."""

    def set_onward(self, received: Flow, carried: int) -> None:
        """Let the sender of `received` know how much of its data has been passed on."""

    def arriving(self, received: Flow, slot: int) -> float | None:
        """The rate (bytes/s) that the sender of `received` has announced for `slot`; None: unknown."""


class Schedule(NamedTuple):
    """Rates of a flow over slots. They are asked for one by one, for which NumPy would be slower."""

    slot: int
    """The first slot."""
    rates: Sequence[float]
    """(K,) bytes/s."""

    def seen_from(self, slot: int, count: int = LANES) -> list[float]:
        """Return the rates (`count`,) from `slot` on; 0 outside the schedule."""
        ahead = slot - self.slot
        seen = [0.0] * min(max(-ahead, 0), count)
        seen += self.rates[max(ahead, 0) : max(ahead + count, 0)]
        return seen + [0.0] * (count - len(seen))

    def rate(self, slot: int) -> float:
        """Return the rate in `slot`; 0 outside the schedule."""
        number = slot - self.slot
        return self.rates[number] if 0 <= number < len(self.rates) else 0.0

    def allows(self, begin_ns: int, end_ns: int, clock: SlotClock) -> float:
        """Return the bytes that may leave between two times of CLOCK_MONOTONIC."""
        total = 0.0
        start = clock.start_ns(self.slot)
        for rate in self.rates:
            end = start + clock.slot_ns
            if rate and begin_ns < end and start < end_ns:
                total += rate * (min(end_ns, end) - max(begin_ns, start))
            start = end
        return total / 1e9


_Received = Mapping[tuple[int, int, Role], Sequence[FlowProgress]]
"""The flows that are received here, by process, group and role."""
NOTHING = Schedule(-LANES, [0.0] * LANES)
"""The schedule of a flow that has none."""


@dataclass(frozen=True)
class _View:
    """What the scheduler sees in one round."""

    clock: SlotClock
    slot: int
    passed: float
    """Part of the slot that is over."""
    received: _Received


@dataclass
class _State:
    """What is known of a flow between its decisions."""

    observed: Floats
    """(1, window): what its path carried of late (`SlotScheduler.observed`)."""
    slot: int = -1
    """Slot of its last decision; -1: none since it has had something to send."""
    ordered: int = -1
    """Slot of its last decision in its job's turn."""
    schedule: Schedule = NOTHING
    """What it has announced."""
    paused: int = -1
    """Slot up to which it is paced while it has no schedule (`Host.pause`)."""
    since_ns: int = 0
    """When its schedule came into force."""
    carried: int = 0
    """How much it had carried then."""
    others: float = 0.0
    """What others had planned on the path's tightest link then, bytes/s."""
    waited: bool = False
    """Whether the application has had nothing to send since then."""
    seen: int = -1
    """How much it had carried in the last round."""
    looked_ns: int = 0
    """When that was."""
    missed: float = 0.0
    """Bytes that it could have sent since that has changed."""
    missed_ns: int = 0
    """The time in which it could have sent them."""
    still: bool = False
    """Whether it stands still."""
    unanswered: int = 0
    """Slots in a row in which the path did not answer at once."""
    asked_in: int = -1
    """The last of them."""
    doubt: Doubt = field(default_factory=Doubt)
    """Whether it believes what others have announced."""


@dataclass
class Delays:
    """Of the latest negotiations, decisions and rounds, seconds."""

    negotiation: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    decision: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    late: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """How much later than planned the latest rounds began."""


@dataclass
class LinkTime:
    """What became of the host's link, in seconds at the rate that flows schedule of it."""

    wanted: float = 0.0
    """In which a flow had something to send."""
    scheduled: float = 0.0
    """What flows had scheduled by the time at which they could send it."""
    no_data: float = 0.0
    """What of that they did not send because they had no more data."""
    still: float = 0.0
    """What they did not send because they stood still."""
    behind: float = 0.0
    """What they did not send although they had data: their sockets or paths were slower."""


def slot_schedulers() -> dict[str, type[SlotScheduler]]:
    """Return the slot schedulers by name. Raises EntrainError if one of another distribution is none."""
    return extended(GROUP, SCHEDULERS, base=SlotScheduler)


def slot_scheduler(name: str) -> type[SlotScheduler]:
    """Return the slot scheduler of this name. Raises BadInput if there is none."""
    found = slot_schedulers()
    if name not in found:
        raise BadInput(f"slot scheduler {name!r} is unknown; {suggestion(name, found)}")
    return found[name]


class HostScheduler:
    """The scheduler of one host; `run` is its thread.

    `capacity` is the rate of the host's link, bytes/s. `counts` and `events` say what has happened.
    """

    def __init__(
        self,
        progress: Progress,
        loads: LoadSource,
        host: Host,
        clock: Callable[[], SlotClock],
        capacity: float,
        *,
        wait: Wait,
        name: str = "",
        scheduler: str = SMALLEST_FIRST,
        turns_from: float = BEGIN,
        parameters: Parameters | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`name` differs from host to host, and spreads their rounds. By default `parameters` are the agents'
        with the clock's slots and `turns_from` as their `begin`. Raises BadInput if there is no `scheduler`
        with this name."""
        self._progress = progress
        self._loads = loads
        self._host = host
        self._clock = clock
        self._wait = wait
        self._now_ns = now_ns
        self._link = capacity
        self._parameters = parameters or Parameters(
            slot_s=clock().slot_ns / 1e9, horizon=LANES, begin=turns_from
        )
        self._capacity = capacity * self._parameters.payload
        self._scheduler = slot_scheduler(scheduler)(self._parameters)
        warm_up()
        self._states: dict[Flow, _State] = {}
        self._phase = zlib.crc32(name.encode()) / 2**32 * PHASES
        self._places: set[float] = set()  # in a slot, of the jobs that communicate
        self._onward: dict[Flow, int] = {}  # what has been told of flows that are received here
        self._resting: set[Flow] = set()
        self._begun = False  # one of them sends
        self._number = 0  # of the last round, without those at jobs' turns
        self._epoch_ns = clock().epoch_ns
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.delays = Delays()
        self.link = LinkTime()
        self._answer_s = 0.0  # mean time of an answer
        self._looked_ns = 0  # in the last round
        self._wanted = False  # a flow had something to send then

    def run(self, stop: threading.Event) -> None:
        """Take rounds until `stop` is set; then let all flows go."""
        urgent()
        while not stop.is_set():
            try:
                self._wait_for_round(stop)
                self.round()
            except (EntrainError, OSError) as error:
                self._failed(str(error))
            except Exception as error:  # one of ours: flows that get no schedule for it become TCP, no others
                traceback.print_exc()
                self._failed(repr(error))
                stop.wait(self._until_next_round_s())
        for flow in list(self._states):
            self._drop(flow)

    def _wait_for_round(self, stop: threading.Event) -> None:
        """Wait for the next round, or for a flow that begins to send."""
        due = time.monotonic() + self._until_next_round_s()
        while not self._begun and not stop.is_set():
            left = due - time.monotonic()
            if left <= 0.0:
                self.delays.late.append(-left)
                break
            self._wait(min(left, STOPPED_WITHIN_S))
        self._begun = False

    def _failed(self, why: str) -> None:
        self.counts["failed_turns"] += 1
        self.say(f"a round of decisions failed: {why}")

    def _until_next_round_s(self) -> float:
        clock = self._clock()
        passed = (self._now_ns() - clock.epoch_ns) % clock.slot_ns / clock.slot_ns
        if not self._places:  # who begins says so
            return (IDLE_SLOTS + self._phase - passed) * clock.slot_ns / 1e9
        count = rounds(clock)
        times = {*self._places, *((number + self._phase) / count for number in range(count))}
        return min((time - passed) % 1.0 or 1.0 for time in times) * clock.slot_ns / 1e9

    def rests(self, flow: Flow) -> bool:
        """Whether `flow` had nothing to send in the last round; may be called from any thread."""
        return flow in self._resting

    def begins(self, feedback: Feedback) -> None:
        """A flow that rested sends: there is feedback about it. It decides at once, because nobody has made
        room for what it sends until then."""
        self._resting.discard(feedback.flow)
        self._begun = True

    def round(self) -> None:
        """Let the flows decide whose turn has come, that begin, or that may get more than they have."""
        self.counts["rounds"] += 1
        clock, now = self._clock(), self._now_ns()
        number = math.floor((now - clock.epoch_ns) / clock.slot_ns * rounds(clock) - self._phase)
        another, self._number = number != self._number, number
        slot = clock.slot(now)
        self._check_clock(clock)
        sent: dict[Flow, FlowProgress] = {}
        received: dict[tuple[int, int, Role], list[FlowProgress]] = {}
        for each in self._progress.read():
            if each.direction is _SENT:
                sent[each.flow] = each
            else:
                received.setdefault((each.pid, each.group, each.role), []).append(each)
        for flow in [flow for flow in self._states if flow not in sent]:
            self._drop(flow)
        self._tell_onward(sent.values(), received)
        planned = sum(each.schedule.rate(slot) for each in self._states.values())
        room = another and planned < FULL * self._capacity
        sending = [each for each in sent.values() if self._has_something_to_send(each, received, clock, slot)]
        if self._wanted:
            self.link.wanted += (now - self._looked_ns) / 1e9
        self._looked_ns, self._wanted = now, bool(sending)
        ranks = self._ranks(sending, _left(sent.values()), slot)
        places: list[float] = self._scheduler.places(ranks).tolist()
        self._places = set(places)
        passed = (now - clock.start_ns(slot)) / clock.slot_ns
        due: list[FlowProgress] = []
        due_ranks: list[float] = []
        for each, rank, place in zip(sending, ranks.tolist(), places, strict=True):
            state = self._states[each.flow]
            if room or state.slot < 0 or (passed >= place and state.ordered != slot):
                due.append(each)
                due_ranks.append(rank)
        if due:
            self._decide_all(due, due_ranks, _View(clock, slot, passed, received))

    def _has_something_to_send(
        self, entry: FlowProgress, received: _Received, clock: SlotClock, slot: int
    ) -> bool:
        """Whether `entry` can send now, or soon what its predecessors have announced; else it rests."""
        state = self._states.get(entry.flow)
        if state is None:
            self._host.begin(entry.flow)
            state = self._states[entry.flow] = _State(self._scheduler.unobserved(self._link)[None, :])
        sends = entry.phase is _COMMUNICATING and entry.done < entry.total
        if sends and entry.done >= entry.ready:
            state.waited = True
            sends = self._coming(entry, received, slot) > 0.0
        if not sends or self._stands_still(entry, state, clock):
            self._rest(entry, state, clock, slot)
            return False
        return True

    def _ranks(self, sending: Sequence[FlowProgress], left: Mapping[int, int], slot: int) -> Floats:
        """Return the positions of flows in the order of decisions; `left` is by process."""
        lefts, link, draw = (np.empty(len(sending)) for _ in range(3))
        role = np.empty(len(sending), np.int64)
        for row, each in enumerate(sending):
            lefts[row], link[row], role[row] = left[each.pid], self._link, each.role
            draw[row] = self._scheduler.draw(each.job, slot)
        return self._scheduler.ranks(lefts, link, draw, role)

    def _stands_still(self, entry: FlowProgress, state: _State, clock: SlotClock) -> bool:
        """Whether nothing of a flow goes though it may send: its receiver does not read, or all that was on
        its way is lost. Others can have its slots until it goes on.

        It is woken: where its own host's queue drops all that was on its way, which of a paced flow is
        little, TCP waits for 200 ms.
        """
        now = self._now_ns()
        since, state.looked_ns = state.looked_ns, now
        gone_on = state.still and entry.flow not in self._resting
        if entry.carried != state.seen or entry.ready - entry.done <= GRAIN or gone_on:
            state.seen, state.still = entry.carried, False
            state.missed, state.missed_ns = 0.0, 0
        elif not state.still and (allowed := state.schedule.allows(since, now, clock)):
            state.missed += allowed
            state.missed_ns += now - since
            state.still = state.missed > 2 * GRAIN and state.missed_ns >= STILL_NS
            if state.still:
                self.counts["stood_still"] += 1
                self._host.wake(entry.flow)
        return state.still

    # -- decisions

    def _decide_all(self, due: Sequence[FlowProgress], ranks: Sequence[float], view: _View) -> None:
        """Ask about the flows that are due, which have these `ranks`, and decide each as its path answers: it
        sees the schedules of those before it."""
        flows, planned = np.zeros(len(due), FLOW), np.zeros((len(due), self._parameters.reserved))
        siblings: dict[tuple[int, Role], int] = {}
        for row, each in enumerate(due):
            planned[row] = self._states[each.flow].schedule.seen_from(view.slot, planned.shape[1])
            flow = flows[row]
            flow["link"] = self._link
            flow["rank"] = ranks[row]
            flow["siblings"] = siblings.setdefault((each.pid, each.role), row)
            flow["sent"], flow["total"] = each.done, each.total
        these = self._scheduler.round(flows, np.arange(len(due)), planned, view.passed)
        rows = {due[row].flow: row for row in these.order}
        self._loads.ask(list(rows), view.slot)
        round_s = view.clock.slot_ns / 1e9 / rounds(view.clock)
        for answer in self._loads.answers(max(ANSWER_PART * round_s, ANSWER_TRIPS * self._answer_s)):
            if answer.slot == view.slot and answer.flow in rows:
                row = rows.pop(answer.flow)
                self._decide(due[row], row, answer, view, these)
        for row in rows.values():
            self._do_without(due[row], view.clock, view.slot)

    def _decide(self, entry: FlowProgress, row: int, answer: PathLoads, view: _View, these: Round) -> None:
        state = self._states[entry.flow]
        if state.unanswered > PATIENCE:
            self.counts["recovered"] += 1
            self.say(f"{_name(entry)}: its path answers again")
        state.unanswered = 0
        state.slot = answer.slot
        self._resting.discard(entry.flow)
        if these.has_turn(row):
            state.ordered = answer.slot
        began = time.perf_counter()
        self._observe(entry, state, view.clock)
        these.flows[row]["bound"] = max(state.observed[0].tolist())
        slot_s = view.clock.slot_ns / 1e9
        left_s = (view.clock.start_ns(answer.slot + 1) - self._now_ns()) / 1e9
        part = min(max(left_s / slot_s, LEAST_PART), 1.0)
        self._follow(these.flows[row], entry, answer, view.received, part * slot_s)
        decided = these.decide(row, answer.load, answer.headroom, answer.own, part)
        share = state.doubt.share(
            answer.slot, answer.headroom, self._link, self._parameters, len(self._states)
        )
        if share:
            self.counts["crowded"] += 1
            decided[:] = max(share, decided[0])
        self.delays.decision.append(time.perf_counter() - began)
        self.delays.negotiation.append(answer.delay_s)
        self._answer_s += (answer.delay_s - self._answer_s) / MEAN_OF
        self.counts["decisions"] += 1
        before = state.schedule.seen_from(answer.slot)
        change = max(abs(new - old) for new, old in zip(decided.tolist(), before, strict=True))
        if state.schedule is NOTHING or change > SAME * self._capacity:
            self._put(entry, state, view.clock, answer.slot, decided, announced=not share)
        state.others = float(these.flows[row]["others"])

    def _follow(
        self, flow: np.void, entry: FlowProgress, answer: PathLoads, received: _Received, left_s: float
    ) -> None:
        """Write into `flow` what is ready of `entry`, and how far the flows are that it follows.

        Counted is what they will bring in the rest of this slot at the rates that their senders announced.
        """
        earlier = entry.carried - entry.done  # in the iterations before
        upstream = _upstream(entry, received)
        follows = entry.role is _AGGREGATION or upstream
        flow["role"] = entry.role if follows else _FREE
        flow["ready"] = entry.ready
        if entry.role is _AGGREGATION:
            # A worker also sees what it gets back itself: nobody has to tell it.
            back = received.get((entry.pid, entry.group, _BROADCAST), ())
            furthest = max([answer.onward, *(each.carried for each in back)])
            flow["ahead"] = max(furthest - earlier, 0)
            flow["chunk"] = entry.chunk + GRAIN if entry.chunk else 0
        elif upstream:
            have = min(each.carried for each in upstream) - earlier
            here = entry.ready if entry.role is _BROADCAST else max(have, 0)
            flow["behind"] = here + self._coming(entry, received, answer.slot) * left_s
            flow["chunk"] = entry.chunk + GRAIN

    def _coming(self, entry: FlowProgress, received: _Received, slot: int) -> float:
        """The rate, bytes/s, at which the flows that it follows have announced to bring it data in `slot`."""
        upstream = _upstream(entry, received)
        return min((self._host.arriving(each.flow, slot) or 0.0 for each in upstream), default=0.0)

    def _observe(self, entry: FlowProgress, state: _State, clock: SlotClock) -> None:
        """Compare what the flow was allowed with what it achieved, for the bound B."""
        now = self._now_ns()
        seconds = (now - state.since_ns) / 1e9
        if state.schedule is NOTHING or state.waited or seconds < clock.slot_ns / 2e9:
            return
        allowed = state.schedule.allows(state.since_ns, now, clock)
        achieved = min(entry.carried - state.carried + GRAIN, allowed)
        state.doubt.observe(allowed, achieved)
        rates = np.array([[self._link], [allowed / seconds], [achieved / seconds], [state.others]])
        state.observed = self._scheduler.observed(state.observed, rates[0], rates[1], rates[2], rates[3])

    def _replace(self, schedule: Schedule, entry: FlowProgress, state: _State, clock: SlotClock) -> None:
        """Note what has become of the flow's schedule, in whose place `schedule` comes."""
        before, state.schedule = state.schedule, schedule
        if before is NOTHING:
            return
        allowed = before.allows(state.since_ns, self._now_ns(), clock)
        unsent = (allowed - (entry.carried - state.carried)) / self._capacity
        self.link.scheduled += allowed / self._capacity
        if state.still:
            self.link.still += unsent
        elif state.waited or entry.phase is not _COMMUNICATING or entry.done >= entry.ready:
            self.link.no_data += unsent
        else:
            self.link.behind += unsent

    def _put(
        self,
        entry: FlowProgress,
        state: _State,
        clock: SlotClock,
        slot: int,
        rates: Floats,
        *,
        announced: bool = True,
    ) -> None:
        schedule = Schedule(slot, rates.tolist())
        if announced:
            self._host.limit(entry.flow, slot, schedule.rates)
        else:
            self._host.pause(entry.flow, slot, schedule.rates[0])
        self._loads.tell(entry.flow, slot, rates if announced else _NO_RATES)
        self._replace(schedule, entry, state, clock)
        state.paused = -1
        state.since_ns = self._now_ns()
        state.carried = entry.carried
        state.waited = False

    # -- without a decision

    def _do_without(self, entry: FlowProgress, clock: SlotClock, slot: int) -> None:
        """The path has not answered: keep the last schedule while it sends, then take an equal share of the
        host's link, then leave the flow to TCP."""
        state = self._states[entry.flow]
        if state.asked_in == slot:
            return  # it is asked again in the next round
        state.asked_in = slot
        state.unanswered += 1
        self.counts["unanswered"] += 1
        if state.unanswered > PATIENCE:
            if state.unanswered == PATIENCE + 1:
                self.counts["left_to_tcp"] += 1
                why = "".join(f"; {each}" for each in self._loads.problems().values())
                what = f"its path has not answered for {PATIENCE} slots; left to TCP{why}"
                self.say(f"{_name(entry)}: {what}")
                self._host.release(entry.flow)
                self._replace(NOTHING, entry, state, clock)
                state.paused = -1
        elif state.unanswered > 1 and state.schedule.rate(slot) <= 0.0:
            self.counts["equal_shares"] += 1
            share = np.zeros(LANES)
            share[:SHARED] = self._capacity / len(self._states)  # no more: others see it as reserved
            self._put(entry, state, clock, slot, share)

    def _rest(self, entry: FlowProgress, state: _State, clock: SlotClock, slot: int) -> None:
        """The flow has nothing to send: take back what it has planned. When it sends again, it begins at a
        rate, because a whole window at once would overflow queues that others have planned to use."""
        flow = entry.flow
        if flow in self._resting and state.schedule is NOTHING and state.paused - slot >= RENEWED:
            return  # all is done
        state.slot = -1
        self._resting.add(flow)
        if state.paused - slot < RENEWED:
            self._host.pause(flow, slot, START * self._capacity)
            state.paused = slot + LANES
        if any(state.schedule.seen_from(slot)):
            self._loads.tell(flow, slot, _NO_RATES)
        self._replace(NOTHING, entry, state, clock)

    def _drop(self, flow: Flow) -> None:
        """The flow has ended, or its process has, or it says what cannot be."""
        del self._states[flow]
        self._resting.discard(flow)
        self._loads.forget(flow)
        self._host.end(flow)

    # -- the rest of the host

    def _tell_onward(self, sent: Iterable[FlowProgress], received: _Received) -> None:
        """Let the workers of a parameter server know how far it has broadcast."""
        most: dict[tuple[int, int], int] = {}
        for each in sent:
            if each.role is _BROADCAST:
                key = each.pid, each.group
                most[key] = max(most.get(key, 0), each.carried)
        onward = {
            each.flow: carried
            for (process, group), carried in most.items()
            for each in received.get((process, group, _AGGREGATION), ())
        }
        for flow, carried in onward.items():
            if self._onward.get(flow) != carried:
                self._host.set_onward(flow, carried)
        self._onward = onward

    def _check_clock(self, clock: SlotClock) -> None:
        """After a step of the clock all flows decide at once, because their schedules are for other slots."""
        step_ns = self._epoch_ns - clock.epoch_ns
        self._epoch_ns = clock.epoch_ns
        if abs(step_ns) > clock.slot_ns:
            self.counts["clock_steps"] += 1
            self.say(f"the clock has stepped by {step_ns / 1e9:.3g} s")
            for state in self._states.values():
                state.slot = -1

    def say(self, text: str) -> None:
        """Tell the user what has happened."""
        self.events.append(escaped(text))
        print(f"entrain-agent: {escaped(text)}", file=sys.stderr, flush=True)

    def status(self) -> Mapping[str, int]:
        """All counters, those of refused progress among them."""
        refused = {f"refused: {reason}": count for reason, count in self._progress.refused.items()}
        return {**self.counts, **refused}


def rounds(clock: SlotClock) -> int:
    """Return how many rounds of decisions a slot has, beside those at jobs' turns."""
    return min(max(clock.slot_ns // ROUND_NS, ROUNDS_MIN), ROUNDS_MAX)


def _left(sent: Iterable[FlowProgress]) -> Counter[int]:
    """By process, the bytes that its flows have to send in this iteration."""
    left: Counter[int] = Counter()
    for each in sent:
        if each.phase is _COMMUNICATING:
            left[each.pid] += each.total - each.done
    return left


_FOLLOWED = {Role.RING: Role.RING, _BROADCAST: _AGGREGATION}


def _upstream(entry: FlowProgress, received: _Received) -> Sequence[FlowProgress]:
    """The flows that bring what `entry` passes on."""
    followed = _FOLLOWED.get(entry.role)
    return received.get((entry.pid, entry.group, followed), ()) if followed is not None else ()


def _name(each: FlowProgress) -> str:
    return f"{each.job}, {each.flow}"
