"""The slot scheduler of one host, at work: Algorithm 2 in each slot (flow-scheduling paper, IV-C).

Each job has its place in a slot, the same on all hosts: the less it has left to send, the earlier. There its
flows decide: they ask for the loads of their paths, plan, and announce what they want of this slot and of the
next one, which nobody has taken yet who comes later. So all flows of a job go before those of another, or
behind, on every link; else each would wait for the other somewhere. Flows that are slow also decide in
other turns, for what is left of the present slot, and those that begin to send at once.

Nothing here limits a flow for longer than its schedule says: who stops renewing it sets the flow free.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hostbpf.carriers import Feedback
from hostbpf.loads import LoadSource, PathLoads, Wait
from hostbpf.progress import Direction, FlowProgress, Phase
from hostbpf.slots import Flow, SlotClock
from hostbpf.urgent import urgent
from machine.errors import EntrainError
from schedulers.compiled import Floats
from schedulers.roles import Role
from schedulers.slots import Dependency, SlotScheduler, in_window, warm_up
from wire.slot_header import LANES

TURNS_MAX = 5
"""How often in a slot what is new is looked at, at most,"""
TURN_NS = 10_000_000
"""and how long that takes at least: a turn is long against a round trip, and short against a slot."""
PHASES = 0.7
"""Part of a turn in which hosts take theirs; later, the answers would come in the next slot."""
CLASSES = 16
"""Places in a slot by what is left of an iteration: in slots of the link, powers of √2 from one to 180."""
ORDER_PART = 0.8
"""Part of a slot in which the places lie: who comes last has announced when the next slot begins."""
REDRAW = 32
"""Slots after which the order within a class is another one: who waits for others finds a time of its own in
which they compute, and is not the last for ever."""
PATIENCE = 4
"""Slots without an answer from the path after which a flow is left to TCP."""
SHARED = 2
"""Slots of an equal share that a flow takes without an answer: this one, and the next up to its turn."""
PAYLOAD = 0.95
"""Share of a link's rate that is planned: headers, acknowledgements and carriers need the rest (a full
segment's payload is 0.956 of its frame)."""
GRAIN = 128 * 1024
"""Progress comes in lumps of so many bytes: what a socket takes at once (TCP_NOTSENT_LOWAT)."""
LEAST_PART = 0.05
"""Of a slot that is nearly over, so much counts as left: the rest of a division would mean nothing."""
RESERVED = 2
"""Slots that a flow plans: the present one, and the next one up to its next decision there. What it took of
later slots now, those could not take who are before it in the order then."""
FULL = 0.9
"""While flows plan less than this part of their host's link, they decide again TURN_NS later."""
STILL_NS = 15_000_000
"""A flow of which nothing has gone for so long, and of which two lumps should have, stands still."""
START = 0.9
"""Part of the link that a flow may have from when it has something to send until it decides, unannounced."""
RENEWED = 4
"""Slots before its end in which that limit is renewed."""
IDLE_SLOTS = 2
"""Slots between turns while no flow has anything to send."""
SAME = 1e-3
"""A plan that differs by less than this part of the link stays as it is."""
STOPPED_WITHIN_S = 0.1
ANSWER_PART = 0.9
"""Part of a turn for which answers are waited for."""
EVENTS = 200
"""The latest so many events are kept for the report."""
SAMPLES = 4096
"""The latest so many delays are kept for their quantiles."""


class Progress(Protocol):
    """Where the flows' progress comes from: `hostbpf.progress.Monitor`."""

    refused: Counter[str]

    def read(self) -> list[FlowProgress]:
        """The progress of this host's flows now."""


class Host(Protocol):
    """What the scheduler does on its host: `hostbpf.agent.Agent`."""

    def begin(self, flow: Flow) -> None:
        """Let `flow` announce what it plans."""

    def end(self, flow: Flow) -> None:
        """Limit `flow` no more, and take back what it has announced."""

    def limit(self, flow: Flow, slot: int, rates: Floats) -> None:
        """Let `flow` send at `rates` (K,) bytes/s from `slot` on, and as it likes afterwards."""

    def pause(self, flow: Flow, slot: int, rate: float) -> None:
        """Let `flow` send at `rate` bytes/s in the K slots from `slot` on, and announce nothing."""

    def wake(self, flow: Flow) -> None:
        """Have `flow` send what it may."""

    def release(self, flow: Flow) -> None:
        """Limit `flow` no more."""

    def set_onward(self, received: Flow, carried: int) -> None:
        """Let the sender of `received` know how much of its data has been passed on."""

    def arriving(self, received: Flow, slot: int) -> float | None:
        """The rate (bytes/s) that the sender of `received` has announced for `slot`; None: unknown."""


@dataclass(frozen=True)
class Plan:
    """Rates (K,) in bytes/s, the first one in `slot`."""

    slot: int
    rates: Floats

    def seen_from(self, slot: int) -> Floats:
        """The rates (K,) from `slot` on; 0 beyond the plan."""
        return in_window(self.rates, self.slot, slot, LANES)

    def rate(self, slot: int) -> float:
        """The rate in `slot`."""
        number = slot - self.slot
        return float(self.rates[number]) if 0 <= number < len(self.rates) else 0.0

    def allows(self, begin_ns: int, end_ns: int, clock: SlotClock) -> float:
        """Bytes that may leave between two times of CLOCK_MONOTONIC."""
        total = 0.0
        end = min(clock.slot(end_ns) + 1, self.slot + len(self.rates))
        for slot in range(max(clock.slot(begin_ns), self.slot), end):
            start = clock.start_ns(slot)
            total += self.rate(slot) * (min(end_ns, start + clock.slot_ns) - max(begin_ns, start))
        return total / 1e9


_Received = Mapping[tuple[int, int, Role], Sequence[FlowProgress]]
"""The flows that are received here, by process, group and role."""
NOTHING = Plan(-LANES, np.zeros(LANES))


@dataclass(frozen=True)
class _Turn:
    """What one turn looks at."""

    clock: SlotClock
    slot: int
    received: _Received
    places: Mapping[Flow, float]
    """Where in the slot the flows decide that have something to send."""
    in_order: Set[Flow]
    """Whose place has come."""


@dataclass
class _State:
    """What is known of a flow between its decisions."""

    slot: int = -1
    """In which it decided last; -1: not since it has had something to send."""
    ordered: int = -1
    """In which it decided at its job's place last."""
    plan: Plan = NOTHING
    paused: int = -1
    """The slot from which on nothing limits it while it has nothing to send; in force without a plan."""
    since_ns: int = 0
    """When the plan came into force,"""
    carried: int = 0
    """how much the flow had carried then, and"""
    others: float = 0.0
    """what others had planned on the path's worst link."""
    seen: int = -1
    """How much it had carried when that was looked at last,"""
    moved_ns: int = 0
    """and since when that is so."""
    still: bool = False
    """Whether it stands still since then."""
    waited: bool = False
    """Whether the application had nothing to send since then."""
    unanswered: int = 0
    """Slots in a row in which the path did not answer at once,"""
    asked_in: int = -1
    """the last of them."""


@dataclass
class Delays:
    """How long the latest negotiations and decisions took, seconds."""

    negotiation: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    decision: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))


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
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._progress = progress
        self._loads = loads
        self._host = host
        self._clock = clock
        self._wait = wait
        self._now_ns = now_ns
        self._overhead = capacity * (1 - PAYLOAD)
        self._capacity = capacity * PAYLOAD
        self._scheduler = SlotScheduler(self._capacity, horizon=LANES, slot_s=clock().slot_ns / 1e9)
        warm_up()
        self._states: dict[Flow, _State] = {}
        self._phase = _draw(name) / 2**32 * PHASES
        self._places: set[float] = set()  # in a slot, of the jobs that communicate
        self._onward: dict[Flow, int] = {}  # what has been told of flows that are received here
        self._resting: set[Flow] = set()
        self._begun = False  # one of them sends
        self._number = 0  # of the part of a slot in which slow flows have decided last
        self._epoch_ns = clock().epoch_ns
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.delays = Delays()

    def run(self, stop: threading.Event) -> None:
        """Take turns until `stop` is set; then let all flows go."""
        urgent()
        while not stop.is_set():
            try:
                self._wait_for_turn(stop)
                self.turn()
            except (EntrainError, OSError) as error:
                self._failed(str(error))
            except Exception as error:  # one of ours: flows that get no plan for it become TCP, and no others
                traceback.print_exc()
                self._failed(repr(error))
                stop.wait(self._until_next_turn_s())
        for flow in list(self._states):
            self._drop(flow)

    def _wait_for_turn(self, stop: threading.Event) -> None:
        """Wait for the next turn, or for a flow that begins to send."""
        due = time.monotonic() + self._until_next_turn_s()
        while not self._begun and not stop.is_set():
            left = due - time.monotonic()
            if left <= 0.0:
                break
            self._wait(min(left, STOPPED_WITHIN_S))
        self._begun = False

    def _failed(self, why: str) -> None:
        self.counts["failed_turns"] += 1
        self.say(f"a turn failed: {why}")

    def _until_next_turn_s(self) -> float:
        clock = self._clock()
        passed = (self._now_ns() - clock.epoch_ns) % clock.slot_ns / clock.slot_ns
        if not self._places:  # who begins says so
            return (IDLE_SLOTS + self._phase - passed) * clock.slot_ns / 1e9
        count = turns(clock)
        times = {*self._places, *((turn + self._phase) / count for turn in range(count))}
        return min((time - passed) % 1.0 or 1.0 for time in times) * clock.slot_ns / 1e9

    def rests(self, flow: Flow) -> bool:
        """Whether `flow` had nothing to send when that was looked at last; may be called from any thread."""
        return flow in self._resting

    def begins(self, feedback: Feedback) -> None:
        """A flow that rested sends: there is feedback about it. It shall decide at once, because for what it
        sends until then nobody has made room."""
        self._resting.discard(feedback.flow)
        self._begun = True

    def turn(self) -> None:
        """One turn: let the flows decide that are due; slow ones once in each part of a slot."""
        clock, now = self._clock(), self._now_ns()
        number = math.floor((now - clock.epoch_ns) / clock.slot_ns * turns(clock) - self._phase)
        another, self._number = number != self._number, number
        slot = clock.slot(now)
        self._check_clock(clock)
        seen = self._progress.read()
        sent = {each.flow: each for each in seen if each.direction is Direction.SENT}
        received: dict[tuple[int, int, Role], list[FlowProgress]] = {}
        for each in seen:
            if each.direction is Direction.RECEIVED:
                received.setdefault((each.pid, each.group, each.role), []).append(each)
        for flow in [flow for flow in self._states if flow not in sent]:
            self._drop(flow)
        self._tell_onward(sent.values(), received)
        passed = (now - clock.start_ns(slot)) / clock.slot_ns
        due, places, in_order = [], {}, set()
        left = _left(sent.values())
        free = another and sum(each.plan.rate(slot) for each in self._states.values()) < FULL * self._capacity
        for each in sent.values():
            state = self._states.get(each.flow)
            if state is None:
                self._host.begin(each.flow)
                state = self._states[each.flow] = _State()
            if each.phase is not Phase.COMMUNICATING or each.done >= each.total:
                self._rest(each.flow, state, slot)
                continue
            if each.done >= each.ready:
                state.waited = True
                if not self._coming(each, received, slot):
                    self._rest(each.flow, state, slot)
                    continue
            if self._stands_still(each, state, clock):
                self._rest(each.flow, state, slot)
                continue
            place = places[each.flow] = self.place(each.job, left[each.pid], slot, clock)
            if passed >= place:
                in_order.add(each.flow)
            if (passed >= place and state.ordered != slot) or state.slot < 0 or free:
                due.append(each)
        self._places = set(places.values())
        if due:
            self._decide_all(due, _Turn(clock, slot, received, places, in_order))

    def _stands_still(self, entry: FlowProgress, state: _State, clock: SlotClock) -> bool:
        """Whether nothing of a flow goes though it may send: its receiver does not read, or all that was on
        its way is lost. Others can have its slots until it goes on.

        It is woken: where its own host's queue drops all that was on its way, which of a paced flow is
        little, TCP waits for 200 ms.
        """
        now = self._now_ns()
        if entry.carried != state.seen or entry.ready - entry.done <= GRAIN:
            state.seen, state.moved_ns, state.still = entry.carried, now, False
        elif state.still and entry.flow not in self._resting:  # something of it has gone
            state.moved_ns, state.still = now, False
        elif now - state.moved_ns >= STILL_NS and not state.still:
            state.still = state.plan.allows(state.moved_ns, now, clock) > 2 * GRAIN
            if state.still:
                self.counts["stood_still"] += 1
                self._host.wake(entry.flow)
        return state.still

    def place(self, job: str, left: int, slot: int, clock: SlotClock) -> float:
        """Where in a slot (0 to 1) the flows of `job` decide, which has `left` bytes to send from here."""
        slots = left / self._capacity / clock.slot_ns * 1e9
        place = min(int(2 * math.log2(slots)), CLASSES - 1) if slots > 1.0 else 0
        return (place + _among(job, slot // REDRAW)) / CLASSES * ORDER_PART

    # -- decisions

    def _decide_all(self, due: Sequence[FlowProgress], turn: _Turn) -> None:
        """Ask about the flows that are due, and decide each as its path answers: it sees the plans of those
        before it. Of a job's flows, who plans the most for what it has left gives way first."""

        def order(each: FlowProgress) -> tuple[float, float]:
            planned = self._states[each.flow].plan.rate(turn.slot)
            return turn.places[each.flow], -planned / (each.total - each.done)

        due = sorted(due, key=order)
        waiting = {each.flow: each for each in due}
        self._loads.ask([each.flow for each in due], turn.slot)
        for answer in self._loads.answers(turn.clock.slot_ns / 1e9 / turns(turn.clock) * ANSWER_PART):
            entry = waiting.get(answer.flow)
            if entry is not None and answer.slot == turn.slot:
                del waiting[answer.flow]
                self._decide(entry, answer, turn, self._room(entry, answer, turn, waiting.values()))
        for entry in waiting.values():
            self._do_without(entry, turn.slot)

    def _room(
        self, entry: FlowProgress, answer: PathLoads, turn: _Turn, undecided: Iterable[FlowProgress]
    ) -> Floats:
        """The rates (K,) in bytes/s that the flow may take.

        Flows of a job that send alike share what there is, so as to be done at the same time: a server sums
        up what all have sent it. What the undecided ones of them have planned is shared anew.
        """
        room: Floats = np.minimum(np.maximum(answer.headroom - self._overhead, 0.0), self._capacity)
        alike = [each for each in undecided if (each.pid, each.role) == (entry.pid, entry.role)]
        if alike:
            left = entry.total - entry.done
            part = left / (left + sum(each.total - each.done for each in alike))
            planned = sum(self._states[each.flow].plan.seen_from(answer.slot) for each in alike)
            room = np.minimum(room, (room + planned) * part)
        room[RESERVED if entry.flow in turn.in_order else 1 :] = 0.0
        return room

    def _decide(self, entry: FlowProgress, answer: PathLoads, turn: _Turn, room: Floats) -> None:
        state = self._states[entry.flow]
        if state.unanswered > PATIENCE:
            self.counts["recovered"] += 1
            self.say(f"{_name(entry)}: its path answers again")
        state.unanswered = 0
        state.slot = answer.slot
        self._resting.discard(entry.flow)
        if answer.flow in turn.in_order:
            state.ordered = answer.slot
        began = time.perf_counter()
        self._observe(entry, state, turn.clock)
        rates = self._plan(entry, answer, turn, room)
        self.delays.decision.append(time.perf_counter() - began)
        self.delays.negotiation.append(answer.delay_s)
        self.counts["decisions"] += 1
        change = np.abs(rates - state.plan.seen_from(answer.slot)).max()
        if state.plan is NOTHING or change > SAME * self._capacity:
            self._put(entry, state, answer.slot, rates)
        state.others = self._capacity + self._overhead - float(answer.headroom[0])

    def _plan(self, entry: FlowProgress, answer: PathLoads, turn: _Turn, room: Floats) -> Floats:
        """Algorithm 2 for one flow, which may take `room` (K,): rates (K,) in bytes/s."""
        slot_s = turn.clock.slot_ns / 1e9
        left_s = (turn.clock.start_ns(answer.slot + 1) - self._now_ns()) / 1e9
        left_s = min(max(left_s, LEAST_PART * slot_s), slot_s)
        dependency, total = self._dependency(entry, answer, turn.received, left_s)
        rates: Floats = self._scheduler.decide_all(
            [entry.flow],
            answer.load[None, :],
            room[None, :],
            [float(entry.done)],
            [float(total)],
            [dependency],
            left_s / slot_s,
        )[0]
        if rates[0] * left_s + rates[1:].sum() * slot_s >= 0.999 * (total - entry.done) > 0:
            last = np.flatnonzero(rates)[-1]
            rates[last] = room[last]  # the end goes as fast as it can, and is not spread over the slot
        return rates

    def _dependency(
        self, entry: FlowProgress, answer: PathLoads, received: _Received, left_s: float
    ) -> tuple[Dependency, int]:
        """Whom a flow follows, and up to which byte of this iteration it can plan.

        That is what is ready, and what the flows that it depends on will bring in the rest of this slot at
        the rate that their senders have announced.
        """
        earlier = entry.carried - entry.done  # in the iterations before
        if entry.role is Role.AGGREGATION:
            ahead = min(answer.onward - earlier, entry.ready)
            return Dependency(Role.AGGREGATION, ahead=float(max(ahead, 0))), entry.ready
        upstream = _upstream(entry, received)
        if not upstream:
            return Dependency(), entry.ready
        coming = self._coming(entry, received, answer.slot) * left_s
        if entry.role is Role.BROADCAST:
            volume = min(entry.ready + round(coming), entry.total)
            return Dependency(Role.BROADCAST, behind=float(volume)), volume
        have = max(min(each.carried for each in upstream) - earlier, 0) + coming
        return Dependency(Role.RING, behind=have, chunk=float(entry.chunk + GRAIN)), entry.total

    def _coming(self, entry: FlowProgress, received: _Received, slot: int) -> float:
        """The rate, bytes/s, at which the flows that it follows have announced to bring it data in `slot`."""
        upstream = _upstream(entry, received)
        return min((self._host.arriving(each.flow, slot) or 0.0 for each in upstream), default=0.0)

    def _observe(self, entry: FlowProgress, state: _State, clock: SlotClock) -> None:
        """Compare what the flow was allowed with what it achieved, for the bound B."""
        now = self._now_ns()
        seconds = (now - state.since_ns) / 1e9
        if state.plan is NOTHING or state.waited or seconds < clock.slot_ns / 2e9:
            return
        allowed = state.plan.allows(state.since_ns, now, clock)
        achieved = min(entry.carried - state.carried + GRAIN, allowed)
        self._scheduler.observe(entry.flow, allowed / seconds, achieved / seconds, max(state.others, 0.0))

    def _put(self, entry: FlowProgress, state: _State, slot: int, rates: Floats) -> None:
        self._host.limit(entry.flow, slot, rates)
        self._loads.tell(entry.flow, slot, rates)
        state.plan = Plan(slot, rates)
        state.paused = -1
        state.since_ns = self._now_ns()
        state.carried = entry.carried
        state.waited = False

    # -- without a decision

    def _do_without(self, entry: FlowProgress, slot: int) -> None:
        """The path has not answered: the last plan for as long as it sends, then an equal share of the host's
        link, then TCP."""
        state = self._states[entry.flow]
        if state.asked_in == slot:
            return  # it is asked again in the next turn
        state.asked_in = slot
        state.unanswered += 1
        self.counts["unanswered"] += 1
        if state.unanswered > PATIENCE:
            if state.unanswered == PATIENCE + 1:
                self.counts["left_to_tcp"] += 1
                why = "".join(f"; {each}" for each in self._loads.problems().values())
                what = f"its path has not answered for {PATIENCE} slots; left to TCP{why}"
                self.say(f"{_name(entry)}: {what}")
                self._release(entry.flow, state)
        elif state.unanswered > 1 and state.plan.rate(slot) <= 0.0:
            self.counts["equal_shares"] += 1
            share = np.zeros(LANES)
            share[:SHARED] = self._capacity / len(self._states)  # no more: others see it as reserved
            self._put(entry, state, slot, share)

    def _rest(self, flow: Flow, state: _State, slot: int) -> None:
        """The flow has nothing to send now: what it has planned is free for others. When it has, again, it
        begins at a rate: a whole window at once would overflow queues that others have planned to use."""
        if flow in self._resting and state.plan is NOTHING and state.paused - slot >= RENEWED:
            return  # all is done
        state.slot = -1
        self._resting.add(flow)
        if state.paused - slot < RENEWED:
            self._host.pause(flow, slot, START * self._capacity)
            state.paused = slot + LANES
        if state.plan.seen_from(slot).any():
            self._loads.tell(flow, slot, np.zeros(LANES))
        state.plan = NOTHING

    def _release(self, flow: Flow, state: _State) -> None:
        self._host.release(flow)
        state.plan = NOTHING
        state.paused = -1

    def _drop(self, flow: Flow) -> None:
        """The flow has ended, or its process has, or it says what cannot be."""
        del self._states[flow]
        self._resting.discard(flow)
        self._loads.forget(flow)
        self._host.end(flow)
        self._scheduler.forget(flow)

    # -- the rest of the host

    def _tell_onward(self, sent: Iterable[FlowProgress], received: _Received) -> None:
        """Let the workers of a parameter server know how far it has broadcast."""
        most: dict[tuple[int, int], int] = {}
        for each in sent:
            if each.role is Role.BROADCAST:
                key = each.pid, each.group
                most[key] = max(most.get(key, 0), each.carried)
        onward = {
            each.flow: carried
            for (process, group), carried in most.items()
            for each in received.get((process, group, Role.AGGREGATION), ())
        }
        for flow, carried in onward.items():
            if self._onward.get(flow) != carried:
                self._host.set_onward(flow, carried)
        self._onward = onward

    def _check_clock(self, clock: SlotClock) -> None:
        """After a step of the clock all flows decide at once, because their plans are for other slots."""
        step_ns = self._epoch_ns - clock.epoch_ns
        self._epoch_ns = clock.epoch_ns
        if abs(step_ns) > clock.slot_ns:
            self.counts["clock_steps"] += 1
            self.say(f"the clock has stepped by {step_ns / 1e9:.3g} s")
            for state in self._states.values():
                state.slot = -1

    def say(self, text: str) -> None:
        """Tell the user what has happened."""
        self.events.append(text)
        print(f"entrain-agent: {text}", file=sys.stderr, flush=True)

    def status(self) -> Mapping[str, int]:
        """All counters, those of refused progress among them."""
        refused = {f"refused: {reason}": count for reason, count in self._progress.refused.items()}
        return {**self.counts, **refused}


def turns(clock: SlotClock) -> int:
    """Into how many turns a slot is cut."""
    return min(max(clock.slot_ns // TURN_NS, 1), TURNS_MAX)


def _left(sent: Iterable[FlowProgress]) -> Counter[int]:
    """By process, the bytes that its flows have to send in this iteration."""
    left: Counter[int] = Counter()
    for each in sent:
        if each.phase is Phase.COMMUNICATING:
            left[each.pid] += each.total - each.done
    return left


_FOLLOWED = {Role.RING: Role.RING, Role.BROADCAST: Role.AGGREGATION}


def _upstream(entry: FlowProgress, received: _Received) -> Sequence[FlowProgress]:
    """The flows that bring what `entry` passes on."""
    followed = _FOLLOWED.get(entry.role)
    return received.get((entry.pid, entry.group, followed), ()) if followed is not None else ()


@functools.lru_cache(1024)
def _among(job: str, drawn: int) -> float:
    """Where in its class (0 to 1) a job decides; `drawn` numbers the draws."""
    return _draw(f"{job} {drawn}") / 2**32


def _draw(text: str) -> int:
    """The same 32 bits for the same text everywhere."""
    return zlib.crc32(text.encode())


def _name(each: FlowProgress) -> str:
    flow = each.flow
    return f"{each.job}, {flow.source}:{flow.source_port} to {flow.destination}:{flow.destination_port}"
