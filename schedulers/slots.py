"""The slot scheduler: how fast a flow sends in each of the next K slots (flow-scheduling paper, IV).

A host asks for each of its flows that is communicating, once per slot, with what it has: the feedback of the
switches on the flow's path (load and headroom per slot, the flow's own part left out), the progress of the
flows it depends on, and its own. All rates are bytes/s, slots are numbered from the present one (0) to K - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schedulers.compiled import Floats, Ints, compiled
from schedulers.roles import Role as Role

HORIZON = 10
SLOT_S = 0.06
WINDOW = 4
"""Slots over which the largest rate seen bounds the next ones (IV-B, IV-C)."""
FLOOR = 0.5
"""The bound B is at least this part of the line rate: what one flow that nobody plans leaves, if it is fair.
Without it every slot in which that flow took more would lower what is asked for in the next."""
PARTIAL = 2
"""Slots that a flow reserves while the horizon cannot hold all of it: the present one, and the next one up to
its next decision."""


def size_class(left: Floats) -> Ints:
    """The place in a slot's order of decisions of each flow, which has `left` (bytes, or any unit) to send.

    The paper leaves the order open. Whoever decides first takes the least loaded slots; so those decide first
    who are soonest done, in classes of powers of two; within a class the order is drawn anew for each slot.
    """
    return np.frexp(left)[1].astype(np.int64) - 1


@compiled
def _fill_slots(
    path_load: Floats,
    cap: Floats,
    volume: float,
    slot_s: float,
    begin: int,
    end: int,
    rank: Ints,
    rate: Floats,
) -> float:
    """Put `volume` bytes into slots begin..end-1 of `rank` in its order, each up to its cap; return what is
    left."""
    left = volume
    for i in range(end - begin):
        slot = rank[i]
        if left <= 0.0:
            rate[slot] = 0.0
        else:
            rate[slot] = min(cap[slot], left / slot_s)
            left -= rate[slot] * slot_s
    return left


@compiled
def plan(
    path_load: Floats,
    cap: Floats,
    volume: float,
    slot_s: float,
    capacity: float,
    price: float,
    begin: int,
    partial: int,
    schedule: Floats,
    trial: Floats,
    rank: Ints,
) -> bool:
    """Algorithm 1 for slots `begin` to K - 1: choose the completion slot β̂ with the least cost and fill the
    least loaded slots.

    The cost (right side of constraint 11) is β̂ plus the sum of rate times the dual price λ; λ is load /
    capacity times `price` and rates count in capacities, so that both terms are in slots. Equal loads go to
    the earlier slot, equal costs to the earlier completion. If the horizon cannot hold `volume` (bytes), no
    schedule is feasible (constraint 3), and the slots before `partial` are filled: whoever needs more than
    the horizon does not hold it against those who could complete in it. Writes `schedule` (K,); `trial` and
    `rank` (K,) are scratch space. Returns whether the flow completes within the horizon.
    """
    horizon = len(path_load)
    for slot in range(begin, horizon):
        schedule[slot] = 0.0
    if volume <= 0.0:
        return True
    best = np.inf
    tiny = 1e-9 * volume
    for end in range(begin + 1, horizon + 1):
        # Insert slot end - 1 behind all that are not more loaded.
        i = end - 1 - begin
        while i > 0 and path_load[rank[i - 1]] > path_load[end - 1]:
            rank[i] = rank[i - 1]
            i -= 1
        rank[i] = end - 1
        left = _fill_slots(path_load, cap, volume, slot_s, begin, end, rank, trial)
        if left <= tiny:
            cost = float(end - begin)
            for slot in range(begin, end):
                cost += price * trial[slot] / capacity * path_load[slot] / capacity
            if cost < best:
                best = cost
                for slot in range(begin, horizon):
                    schedule[slot] = trial[slot] if slot < end else 0.0
            elif best < end - begin:
                break  # later completions cost more than that already
    if best == np.inf:
        for slot in range(begin, horizon):
            schedule[slot] = trial[slot] if slot < partial else 0.0
        return False
    return True


@compiled
def decide_flow(
    path_load: Floats,
    headroom: Floats,
    sent: float,
    total: float,
    target: float,
    limit: float,
    seen: float,
    capacity: float,
    slot_s: float,
    price: float,
    partial: int,
    schedule: Floats,
    cap: Floats,
    trial: Floats,
    rank: Ints,
) -> None:
    """Algorithm 2 for one flow: the initial schedule, adjusted in the present slot to the flows it depends
    on.

    `sent` of `total` bytes are through. `target` is what the flow should have sent at the end of this slot to
    keep up (-inf: nobody to follow), `limit` what it can have (inf: no dependency). `seen` is the largest
    rate that the path was seen to carry for training flows over the last slots; what others plan comes off
    it, which gives the bound B. Writes `schedule` (K,).
    """
    for slot in range(len(headroom)):
        cap[slot] = max(headroom[slot] - (capacity - seen), 0.0)
    remaining = total - sent
    plan(path_load, cap, remaining, slot_s, capacity, price, 0, partial, schedule, trial, rank)
    rate = schedule[0]
    delta = (target - (sent + rate * slot_s)) / slot_s
    if delta > 0.0:
        rate = min(rate + delta, cap[0], remaining / slot_s)
    left = remaining - rate * slot_s
    if sent + rate * slot_s > limit:
        # What is to come is unknown: reserving slots for it would starve the very flow that it waits for.
        rate = max(limit - sent, 0.0) / slot_s
        left = 0.0
    if rate != schedule[0]:
        schedule[0] = rate
        plan(
            path_load,
            cap,
            left if left > 1e-9 * total else 0.0,
            slot_s,
            capacity,
            price,
            1,
            partial,
            schedule,
            trial,
            rank,
        )


@compiled
def decide_flows(
    path_load: Floats,
    headroom: Floats,
    progress: Floats,
    capacity: float,
    slot_s: float,
    price: float,
    partial: int,
    part: float,
    schedules: Floats,
) -> None:
    """`decide_flow` for each row of `path_load`, `headroom` and `schedules` (n, K).

    `progress` (n, 5) holds sent, total, target, limit and seen of each flow; `part` of the present slot is
    left.
    """
    horizon = path_load.shape[1]
    cap, trial, rank = np.empty(horizon), np.empty(horizon), np.empty(horizon, np.int64)
    room = np.empty(horizon)
    for f in range(len(path_load)):
        room[:] = headroom[f]
        unseen = capacity - progress[f, 4]
        room[0] = max(room[0] - unseen, 0.0) * part + unseen  # decided as the mean rate of a whole slot
        decide_flow(
            path_load[f],
            room,
            progress[f, 0],
            progress[f, 1],
            progress[f, 2],
            progress[f, 3],
            progress[f, 4],
            capacity,
            slot_s,
            price,
            partial,
            schedules[f],
            cap,
            trial,
            rank,
        )
        schedules[f, 0] /= part


@dataclass(frozen=True)
class Dependency:
    """Progress of the flows that a flow follows, in bytes accumulated to the end of this slot as far as
    known.

    `ahead`: largest of the PS's broadcast flows, for an aggregation flow; `behind`: least of the PS's
    aggregation flows, for a broadcast flow, or that of the predecessor, for a ring flow. `chunk` is the lag
    that a ring allows (bytes).
    """

    role: Role = Role.FREE
    ahead: float = 0.0
    behind: float = math.inf
    chunk: float = 0.0

    def bounds(self) -> tuple[float, float]:
        """Return target and limit of `decide_flow` (IV-C; the ring read with a lag of one chunk, else it
        stands still)."""
        if self.role is Role.AGGREGATION:
            return self.ahead, math.inf
        if self.role is Role.BROADCAST:
            return self.behind, self.behind
        if self.role is Role.RING:
            return self.behind, self.behind + self.chunk
        return -math.inf, math.inf


FREE = Dependency()


class SlotScheduler:
    """The scheduler of one host: its flows by key, a decision per flow and slot.

    `capacity` is the line rate (bytes/s), `price` the weight of λ, `partial` the slots that a flow reserves
    while the horizon cannot hold all of it (`horizon`: all that it can get). Raises ValueError for values
    that make no sense.
    """

    def __init__(
        self,
        capacity: float,
        *,
        horizon: int = HORIZON,
        slot_s: float = SLOT_S,
        window: int = WINDOW,
        price: float = 1.0,
        partial: int = PARTIAL,
    ) -> None:
        if not capacity > 0.0 or not slot_s > 0.0 or min(horizon, window, partial) < 1 or price < 0.0:
            raise ValueError(
                "capacity and slot must be positive, horizon, window and partial at least 1, price at least 0"
            )
        self.capacity = capacity
        self.slot_s = slot_s
        self.horizon = horizon
        self.window = window
        self.price = price
        self.partial = partial
        self._seen: dict[object, list[float]] = {}

    def decide(
        self,
        flow: object,
        path_load: Floats,
        headroom: Floats,
        sent: float,
        total: float,
        dependency: Dependency = FREE,
    ) -> Floats:
        """Return the schedule (K,) of `flow`; `path_load` and `headroom` (K,) come from the switches,
        bytes/s."""
        schedules: Floats = self.decide_all(
            [flow], path_load[None, :], headroom[None, :], [sent], [total], [dependency]
        )[0]
        return schedules

    def decide_all(
        self,
        flows: Sequence[object],
        path_load: Floats,
        headroom: Floats,
        sent: Sequence[float],
        total: Sequence[float],
        dependencies: Sequence[Dependency],
        part: float = 1.0,
    ) -> Floats:
        """Return the schedules (n, K) of `flows`, one row each of all arguments. Flows do not see each
        other's new plans.

        `part` (over 0, at most 1) is what is left of the present slot; its rates hold for that time.
        """
        shape = (len(flows), self.horizon)
        if path_load.shape != shape or headroom.shape != shape:
            raise ValueError(
                f"feedback must have {self.horizon} slots a flow, not {path_load.shape} {headroom.shape}"
            )
        progress = np.array(
            [
                (s, t, *d.bounds(), max(self._seen[f]) if f in self._seen else self.capacity)
                for f, s, t, d in zip(flows, sent, total, dependencies, strict=True)
            ]
        )
        schedules = np.empty(shape)
        decide_flows(
            path_load,
            headroom,
            progress,
            self.capacity,
            self.slot_s,
            self.price,
            self.partial,
            part,
            schedules,
        )
        return schedules

    def observe(self, flow: object, planned: float, achieved: float, others: float) -> None:
        """Record a slot that has passed: the rate planned and achieved, and what others had planned on the
        path's worst link.

        A flow that got what it asked for says nothing about the path's limit, so it counts as the line rate;
        so do slots before the first. The least is FLOOR of the line rate.
        """
        seen = self._seen.setdefault(flow, [self.capacity] * self.window)
        short = achieved < 0.98 * planned
        bound = max(achieved + others, FLOOR * self.capacity) if short else self.capacity
        seen.append(min(bound, self.capacity))
        del seen[: -self.window]

    def forget(self, flow: object) -> None:
        """Drop what is known of a flow that has ended."""
        self._seen.pop(flow, None)


@compiled
def announce(links: Ints, before: Floats, after: Floats, first_lane: int, table: Floats) -> None:
    """Replace a flow's part in the load table (links, K lanes): lane (first_lane + slot) mod K takes the
    change of that slot.

    `before` is by lane, `after` by slot. Writes `before` too.
    """
    horizon = len(after)
    for slot in range(horizon):
        lane = (first_lane + slot) % horizon
        change = after[slot] - before[lane]
        if change != 0.0:
            before[lane] = after[slot]
            for link in links:
                if link < 0:
                    break
                table[link, lane] = max(table[link, lane] + change, 0.0)


@compiled
def feedback(
    links: Ints,
    own: Floats,
    first_lane: int,
    table: Floats,
    capacity: Floats,
    path_load: Floats,
    headroom: Floats,
) -> None:
    """Read the load table along a path without the flow's own part: sum of loads and least headroom per slot
    (K,)."""
    horizon = len(path_load)
    for slot in range(horizon):
        lane = (first_lane + slot) % horizon
        load = 0.0
        room = np.inf
        for link in links:
            if link < 0:
                break
            others = max(table[link, lane] - own[lane], 0.0)
            load += others
            room = min(room, capacity[link] - others)
        path_load[slot] = load
        headroom[slot] = max(room, 0.0)


def in_window(schedule: Floats, slot: int, begin: int, horizon: int) -> Floats:
    """What `schedule`, which starts at `slot`, has for the `horizon` slots from `begin` on; 0 outside it."""
    window = np.zeros(horizon)
    first, end = max(slot, begin), min(slot + len(schedule), begin + horizon)
    if first < end:
        window[first - begin : end - begin] = schedule[first - slot : end - slot]
    return window


class LoadTable:
    """The emulated switches' table: what is planned per link and slot, and each flow's part in it (IV-A).

    A flow's schedule replaces its last one; slots that have passed and flows that have ended leave by
    themselves.
    """

    def __init__(self, capacity: Floats, horizon: int = HORIZON) -> None:
        self.capacity = capacity
        self.horizon = horizon
        self.slot = 0
        self.table: Floats = np.zeros((len(capacity), horizon))
        self._own: dict[object, tuple[Ints, Floats]] = {}

    def advance(self, slot: int) -> None:
        """Move the window to begin at `slot`."""
        if slot == self.slot:
            return
        if slot < self.slot:
            raise ValueError(f"slot {slot} is before {self.slot}: the window only moves on")
        for passed in range(self.slot, min(slot, self.slot + self.horizon)):
            self.table[:, passed % self.horizon] = 0.0
            for _, own in self._own.values():
                own[passed % self.horizon] = 0.0
        self.slot = slot
        self._own = {flow: part for flow, part in self._own.items() if part[1].any()}

    def update(self, flow: object, links: Ints, schedule: Floats, slot: int | None = None) -> None:
        """Take a flow's new schedule over `links`, its first rate in `slot` (default: the window's first).

        It replaces the last one. Slots outside the window are left out.
        """
        links = np.asarray(links, np.int64)
        if flow in self._own and not _same(self._own[flow][0], links):
            self.remove(flow)  # it has another path now
        _, own = self._own.setdefault(flow, (links, np.zeros(self.horizon)))
        window = in_window(schedule, self.slot if slot is None else slot, self.slot, self.horizon)
        announce(links, own, window, self.slot % self.horizon, self.table)

    def remove(self, flow: object) -> None:
        """Drop a flow that has ended."""
        if flow in self._own:
            links, own = self._own.pop(flow)
            announce(links, own, np.zeros(self.horizon), self.slot % self.horizon, self.table)

    def ask(self, flow: object, links: Ints) -> tuple[Floats, Floats]:
        """Return path load and headroom (K,) without the flow's own part, which is on its last path alone."""
        links = np.asarray(links, np.int64)
        path, own = self._own.get(flow, (links, np.zeros(self.horizon)))
        if not _same(path, links):
            own = np.zeros(self.horizon)
        load, room = np.empty(self.horizon), np.empty(self.horizon)
        feedback(links, own, self.slot % self.horizon, self.table, self.capacity, load, room)
        return load, room


def _same(path: Ints, links: Ints) -> bool:
    return path is links or np.array_equal(path, links)


def warm_up() -> None:
    """Load the compiled code, or compile it, so that no slot has to wait for that."""
    nothing = np.zeros(HORIZON)
    table = LoadTable(np.ones(1))
    table.update(None, np.array([0]), nothing)
    SlotScheduler(1.0).decide(None, *table.ask(None, np.array([0])), 0.0, 1.0)
