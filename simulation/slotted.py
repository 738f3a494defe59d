"""Transport in time slots, as in the slot scheduler's own simulation (VII): rates are set at the slots'
boundaries.

Flows of a collective follow one another byte by byte (`Pipelined`), whatever the policy: a parameter server
cannot broadcast what it has not aggregated, a ring member cannot pass on what it has not got (and the lag of
a chunk). Policies:

``slots``: Algorithms 1 and 2 with the switches' load tables; each flow decides in turn, and sees what those
before it have announced. Coflows that have less left decide first, by `schedulers.slots.size_class`; within a
class, or with `drawn` in all, the order is shuffled anew for each slot by the seed.

``fair``: flows share links max-min fairly, as ideal congestion control would, and know of no slots or jobs.

``equal``: each link is divided equally among its flows, whether they can use their shares or not.

Cross traffic that is not training takes a share of each link that changes with the slot; training flows yield
to it.
"""

from __future__ import annotations

import math
import time
from typing import Literal, get_args

import numpy as np

from machine.errors import BadInput
from schedulers.coflow.filling import equal_share, progressive_fill, squeeze
from schedulers.compiled import Floats, Ints, Routes, compiled
from schedulers.slots import (
    FLOOR,
    HORIZON,
    PARTIAL,
    SLOT_S,
    WINDOW,
    announce,
    decide_flow,
    feedback,
    size_class,
)
from simulation.collectives import Pipelined
from simulation.engine import SAME, Finished, checking
from simulation.flows import CoflowTable, FlowTable
from simulation.jobs import Coflow
from simulation.scheduled import assert_feasible
from simulation.settling import predict, settle
from simulation.topology import Topology, mix
from simulation.usage import Usage

SlotPolicy = Literal["slots", "fair", "equal"]
AGGREGATION, BROADCAST, RING = 1, 2, 3
_NOTHING = np.iinfo(np.int64).max


@compiled
def _bounds(
    f: int,
    first: int,
    role: int,
    upstream: int,
    chunk: float,
    group_least: Floats,
    group_most: Floats,
    reach: Floats,
) -> tuple[float, float]:
    """Return target and limit of flow f from the progress of its upstream, as in
    schedulers.slots.Dependency."""
    if role == AGGREGATION:
        return group_most[upstream], np.inf
    if role == BROADCAST:
        return group_least[upstream], group_least[upstream]
    if role == RING:
        return reach[first + upstream], reach[first + upstream] + chunk
    return -np.inf, np.inf


@compiled
def _decide_slots(
    ranking: Ints,
    first: Ints,
    last: Ints,
    chunk: Floats,
    links: Routes,
    size: Floats,
    remaining: Floats,
    role: Ints,
    upstream: Ints,
    seen: Floats,
    own: Floats,
    table: Floats,
    capacity: Floats,
    slot_s: float,
    price: float,
    partial: int,
    lane: int,
    rate: Floats,
    reach: Floats,
) -> None:
    """Let each flow of each coflow decide in turn; `reach` gets the bytes each will have sent at the slot's
    end."""
    horizon = own.shape[1]
    path_load, headroom = np.empty(horizon), np.empty(horizon)
    schedule, cap, trial = np.empty(horizon), np.empty(horizon), np.empty(horizon)
    rank = np.empty(horizon, np.int64)
    group_least, group_most = np.empty(64), np.empty(64)
    for c in ranking:
        group_least[:] = np.inf
        group_most[:] = 0.0
        for f in range(first[c], last[c]):
            # Until a flow has decided, what it announced for this slot counts.
            reach[f] = min(size[f] - remaining[f] + own[f, lane] * slot_s, size[f])
            if role[f] == BROADCAST:
                group_most[upstream[f]] = max(group_most[upstream[f]], reach[f])
        for f in range(first[c], last[c]):
            if remaining[f] > 0.0:
                feedback(links[f], own[f], lane, table, capacity, path_load, headroom)
                target, limit = _bounds(
                    f, first[c], role[f], upstream[f], chunk[c], group_least, group_most, reach
                )
                best_seen = 0.0
                for k in range(seen.shape[1]):
                    best_seen = max(best_seen, seen[f, k])
                decide_flow(
                    path_load,
                    headroom,
                    size[f] - remaining[f],
                    size[f],
                    target,
                    limit,
                    best_seen,
                    capacity[links[f, 0]],
                    slot_s,
                    price,
                    partial,
                    schedule,
                    cap,
                    trial,
                    rank,
                )
                announce(links[f], own[f], schedule, lane, table)
                rate[f] = schedule[0]
            else:
                rate[f] = 0.0
            reach[f] = min(size[f] - remaining[f] + rate[f] * slot_s, size[f])
            if role[f] == AGGREGATION:
                group_least[upstream[f]] = min(group_least[upstream[f]], reach[f])


@compiled
def _limit_rates(
    first: Ints,
    last: Ints,
    chunk: Floats,
    size: Floats,
    remaining: Floats,
    role: Ints,
    upstream: Ints,
    slot_s: float,
    rate: Floats,
    reach: Floats,
) -> int:
    """Lower rates to what the flows can have; return how many were lowered."""
    lowered = 0
    group_least, group_most = np.empty(64), np.empty(64)
    for c in range(len(first)):
        group_least[:] = np.inf
        for f in range(first[c], last[c]):
            reach[f] = min(size[f] - remaining[f] + rate[f] * slot_s, size[f])
        for f in range(first[c], last[c]):
            _, limit = _bounds(f, first[c], role[f], upstream[f], chunk[c], group_least, group_most, reach)
            if reach[f] > limit and remaining[f] > 0.0:
                rate[f] = max(limit - (size[f] - remaining[f]), 0.0) / slot_s
                reach[f] = size[f] - remaining[f] + rate[f] * slot_s
                lowered += 1
            if role[f] == AGGREGATION:
                group_least[upstream[f]] = min(group_least[upstream[f]], reach[f])
    return lowered


class SlottedTransport:
    """See the module.

    `rounds` is how often in a slot each flow announces and decides anew, `partial` how many slots it reserves
    while the horizon cannot hold all of it; for `drawn` see the module. `cross` (share of each link, 0 to 1)
    is the mean of the cross traffic, drawn per link and slot from `seed`. `usage` records what training puts
    on links.
    """

    def __init__(
        self,
        topology: Topology,
        policy: SlotPolicy = "slots",
        *,
        slot_s: float = SLOT_S,
        horizon: int = HORIZON,
        price: float = 1.0,
        rounds: int = 1,
        partial: int = PARTIAL,
        drawn: bool = False,
        cross: float = 0.0,
        seed: int = 0,
        check: bool | None = None,
        flow_times: bool = False,
        usage: Usage | None = None,
    ) -> None:
        if policy not in get_args(SlotPolicy):
            raise BadInput(f"slot policy {policy!r} is unknown; use one of {', '.join(get_args(SlotPolicy))}")
        if not slot_s > 0.0 or not math.isfinite(slot_s) or min(horizon, rounds, partial) < 1:
            raise BadInput(
                f"a slot of {slot_s} s, a horizon of {horizon}, {rounds} rounds and {partial} slots reserved "
                "make no sense; give positive numbers"
            )
        if not 0.0 <= cross < 1.0:
            raise BadInput(
                f"cross traffic of {cross} of a link is impossible; give a share from 0 to below 1"
            )
        self.topology = topology
        self.policy = policy
        self.slot_s = slot_s
        self.price = price
        self.rounds = rounds
        self.partial = partial
        self.drawn = drawn
        self.cross = cross
        self.seed = seed
        self.check = checking(check)
        self.flow_times = flow_times
        self.usage = usage
        self.decision_seconds: list[float] = []
        self.decided_flows: list[int] = []
        self._flows = FlowTable(hops=2)
        self._coflows = CoflowTable()
        self._role, self._upstream = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._own, self._seen, self._reach = np.zeros((0, horizon)), np.zeros((0, WINDOW)), np.zeros(0)
        self._table = np.zeros((len(topology.capacity), horizon))
        self._slot = -1
        self._due: int | None = None
        self._order = 0

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        links = self.topology.routes(coflow.src, coflow.dst, np.arange(len(coflow.src)))
        first, last = self._flows.add(links, coflow.size)
        self._resize()
        rows = slice(first, last)
        self._role[rows] = coflow.role if isinstance(coflow, Pipelined) else 0
        self._upstream[rows] = coflow.upstream if isinstance(coflow, Pipelined) else 0
        self._own[rows] = 0.0
        self._seen[rows] = self.topology.capacity[links[:, 0]][:, None]
        self._coflows.add(
            handle=handle,
            first=first,
            last=last,
            order=self._order,
            job=job,
            total=float(coflow.size.sum()),
            since=now,
            finish=math.inf,
            chunk=coflow.chunk if isinstance(coflow, Pipelined) else 0.0,
        )
        self._order += 1
        if len(self._coflows) == 1:
            # Nobody was there to move the slots on: what was due may have passed.
            self._due = max(math.ceil(now / self.slot_s * (1.0 - SAME)), self._slot + 1)

    def next_event(self) -> float:
        """See Transport."""
        if not len(self._coflows):
            return math.inf
        due = math.inf if self._due is None else self._due * self.slot_s
        return min(float(self._coflows.floats("finish").min()), due)

    def advance(self, now: float) -> list[Finished]:
        """See Transport."""
        rows = np.flatnonzero(self._coflows.floats("finish") <= now * (1.0 + SAME))
        if not len(rows):
            return []
        rows = rows[np.lexsort((self._coflows.ints("order")[rows], self._coflows.floats("finish")[rows]))]
        handles = [int(h) for h in self._coflows.ints("handle")[rows]]
        settle(rows, now, self._coflows, self._flows, self.usage)
        return [self._complete(handle) for handle in handles]

    def decide(self, now: float) -> None:
        """See Transport."""
        if self._due is None or now < self._due * self.slot_s:
            return
        slot = self._due
        self._end_slot(slot)
        self._due = slot + 1 if len(self._coflows) else None
        if self._due is None:
            return
        ints, flows = self._coflows.ints, self._flows
        first, last = ints("first"), ints("last")
        rows = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
        largest = np.maximum.reduceat(flows.remaining[rows], np.cumsum(last - first) - (last - first))
        rows = rows[flows.remaining[rows] > 0.0]
        chunk = self._coflows.floats("chunk")
        available = self._available(slot)
        begin = time.perf_counter()
        if self.policy == "slots":
            draw = mix(self.seed, slot, ints("order"))
            ranking = np.lexsort((draw, 0 * draw if self.drawn else size_class(largest)))
            for _ in range(self.rounds):
                _decide_slots(
                    ranking,
                    first,
                    last,
                    chunk,
                    flows.links,
                    flows.size,
                    flows.remaining,
                    self._role,
                    self._upstream,
                    self._seen,
                    self._own,
                    self._table,
                    self.topology.capacity,
                    self.slot_s,
                    self.price,
                    self.partial,
                    slot % self._own.shape[1],
                    flows.rate,
                    self._reach,
                )
        else:
            self._share(first, last, chunk, rows, available)
        self.decision_seconds.append(time.perf_counter() - begin)
        self.decided_flows.append(len(rows))
        planned = flows.rate[rows].copy()
        squeeze(rows, flows.links, available, flows.rate)
        if self.cross:
            _limit_rates(
                first,
                last,
                chunk,
                flows.size,
                flows.remaining,
                self._role,
                self._upstream,
                self.slot_s,
                flows.rate,
                self._reach,
            )
            self._remember(rows, planned, slot)
        if self.check:
            assert_feasible(flows.links, rows, flows.rate, self.topology, self.policy)
        predict(self._coflows, flows)

    def job_done(self, job: int) -> None:
        """See Transport."""

    def _share(self, first: Ints, last: Ints, chunk: Floats, rows: Ints, available: Floats) -> None:
        """Shares, lowered to what flows can have; what max-min leaves by that goes to the flows that can use
        it, once."""
        flows = self._flows
        limits = (first, last, chunk, flows.size, flows.remaining, self._role, self._upstream, self.slot_s)
        if self.policy == "equal":
            equal_share(flows.links, rows, available, flows.rate)
            _limit_rates(*limits, flows.rate, self._reach)
            return
        flows.rate[rows] = 0.0
        progressive_fill(flows.links, rows, np.ones(len(rows)), available.copy(), flows.rate)
        shares = flows.rate[rows].copy()
        if _limit_rates(*limits, flows.rate, self._reach):
            residual = self._residual(rows, available)
            weight = np.where(flows.rate[rows] < shares, 0.0, 1.0)
            progressive_fill(flows.links, rows, weight, residual, flows.rate)
            _limit_rates(*limits, flows.rate, self._reach)

    def _residual(self, rows: Ints, available: Floats) -> Floats:
        used = np.zeros(len(available) + 1)  # the last place takes the padding of routes
        links = self._flows.links[rows]
        np.add.at(used, links, self._flows.rate[rows][:, None])
        result: Floats = np.maximum(available - used[:-1], 0.0)
        return result

    def _available(self, slot: int) -> Floats:
        capacity = self.topology.capacity
        if not self.cross:
            return capacity
        # Uniform from 0 to twice the mean, held for 8 slots: bursts of about half a second, as the paper
        # injects.
        draw = mix(self.seed + 1, slot // 8, np.arange(len(capacity))) % 1_000_003 / 1_000_003.0
        return capacity * (1.0 - np.minimum(2.0 * self.cross * draw, 0.99))

    def _remember(self, rows: Ints, planned: Floats, slot: int) -> None:
        """Record what paths were seen to carry, for the bound B; see SlotScheduler.observe."""
        flows = self._flows
        others = (
            np.array(
                [
                    max(
                        (
                            self._table[link, slot % self._own.shape[1]]
                            for link in flows.links[f]
                            if link >= 0
                        ),
                        default=0.0,
                    )
                    for f in rows
                ]
            )
            - planned
            if self.policy == "slots"
            else np.zeros(len(rows))
        )
        achieved = flows.rate[rows]
        line_rate = self.topology.capacity[flows.links[rows, 0]]
        limited = achieved < 0.98 * planned
        self._seen[rows, slot % WINDOW] = np.where(
            limited, np.clip(achieved + np.maximum(others, 0.0), FLOOR * line_rate, line_rate), line_rate
        )

    def _end_slot(self, slot: int) -> None:
        """Account for the slot that ends and let the window move on."""
        rows = np.arange(len(self._coflows))
        settle(rows, slot * self.slot_s, self._coflows, self._flows, self.usage)
        for passed in range(max(self._slot, 0), min(slot, max(self._slot, 0) + self._own.shape[1])):
            self._table[:, passed % self._own.shape[1]] = 0.0
            self._own[:, passed % self._own.shape[1]] = 0.0
        self._slot = slot

    def _complete(self, handle: int) -> Finished:
        coflows = self._coflows
        row = int(np.flatnonzero(coflows.ints("handle") == handle)[0])
        first, last = int(coflows.ints("first")[row]), int(coflows.ints("last")[row])
        finish = float(coflows.floats("finish")[row])
        if self.policy == "slots":
            nothing = np.zeros(self._own.shape[1])
            for f in range(first, last):
                announce(
                    self._flows.links[f],
                    self._own[f],
                    nothing,
                    max(self._slot, 0) % len(nothing),
                    self._table,
                )
        done = self._flows.done[first:last]
        times = np.where(np.isnan(done), finish, np.minimum(done, finish)) if self.flow_times else None
        finished = Finished(handle, finish, float(coflows.floats("waiting")[row]), times)
        self._flows.remove(first, last)
        coflows.remove(row)
        return finished

    def _resize(self) -> None:
        rows = len(self._flows.size)
        if len(self._role) < rows:
            more = rows - len(self._role)
            self._role = np.concatenate([self._role, np.zeros(more, np.int64)])
            self._upstream = np.concatenate([self._upstream, np.zeros(more, np.int64)])
            self._reach = np.concatenate([self._reach, np.zeros(more)])
            self._own = np.concatenate([self._own, np.zeros((more, self._own.shape[1]))])
            self._seen = np.concatenate([self._seen, np.zeros((more, WINDOW))])
