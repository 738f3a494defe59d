"""Transport in time slots, as in the slot scheduler's own simulation (VII): rates change at slot boundaries.

Under every policy, the flows of a collective follow one another (`Pipelined`). A parameter server cannot
broadcast what it has not aggregated, byte by byte or in chunks. A ring member cannot pass on what it has not
received, and lags by a chunk. Policies:

``slots``: the agents' slot scheduler (`schedulers.slots.host`), run for all hosts at each boundary. Feedback
comes from load tables, which hold the announcements of the flows earlier in the order.

``fair``: flows share links max-min fairly, as under ideal congestion control, without regard to slots or
jobs; with a `gain`, in proportion to MLTCP's F of their progress.

``equal``: each link is divided equally among its flows, whether or not they can use their shares.

Cross traffic takes a share of each link, which changes from slot to slot. Training flows yield to it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from machine.errors import BadInput
from schedulers.coflow.filling import equal_share, progressive_fill, squeeze
from schedulers.compiled import Floats, Ints, Routes, clock_s, compiled
from schedulers.mltcp import FAIR, Gain
from schedulers.slots.host import FLOW, Parameters, SlotScheduler
from schedulers.slots.kernels import BROADCAST, Flows, Rules, decide, dependency
from schedulers.slots.roles import Role
from schedulers.slots.table import announce, feedback
from simulation.collectives import Pipelined
from simulation.engine import SAME, Finished, checking
from simulation.flows import CoflowTable, FlowTable
from simulation.jobs import Coflow, links_of
from simulation.marks import Marking, queueing
from simulation.scheduled import assert_feasible
from simulation.settling import predict, settle
from simulation.topology import Topology, mix
from simulation.usage import Usage

SlotPolicy = Literal["slots", "fair", "equal"]
SIMULATED = Parameters(payload=1.0, begin=0.0, spread=0.0, hasten=False)
"""The agents' parameters, adapted to an ideal network. Its links carry only payload. All hosts decide at the
slot boundary, one after another, and not again within the slot."""
STRUCTURES = 4096
"""Number of coflows whose structure is cached. Jobs start the same coflows in each iteration."""
WHOLE = 1e-9
"""Part of a chunk that may be missing from a whole one: rounding."""
EXACT = 1e-12
"""Fraction of a flow's size by which rounding may shift the bytes at a slot's end."""


@compiled
def _follow(flows: Flows, f: int, upstream: Ints, reach: Floats) -> None:
    """Write the progress of the flows that flow f follows: rows upstream[f, 0] to upstream[f, 1] - 1.

    A parameter server sends back only whole chunks."""
    least, most = np.inf, 0.0
    for row in range(upstream[f, 0], upstream[f, 1]):
        least = min(least, reach[row])
        most = max(most, reach[row])
    flow = flows[f]
    if flow.role == BROADCAST and flow.chunk > 0.0 and least < flow.total * (1.0 - WHOLE):
        least = np.floor(least / flow.chunk + WHOLE) * flow.chunk
    flows["behind"][f] = least
    flows["ahead"][f] = most


@compiled
def _decide_slots(
    order: Ints,
    flows: Flows,
    upstream: Ints,
    links: Routes,
    own: Floats,
    table: Floats,
    capacity: Floats,
    lane: int,
    planned: Floats,
    waiting: Floats,
    rules: Rules,
    part: float,
    rate: Floats,
    reach: Floats,
) -> None:
    """Let each flow of a round decide in `order`, based on what the load tables hold of earlier flows.

    `part` is what is left of the present slot. Flows decide about as many slots as `planned` has; what they
    have planned for later ones stays. `reach` holds the bytes that each flow will have sent by the slot's
    end, according to its announcement.
    """
    reserved = planned.shape[1]
    path_load, headroom, first = np.empty(reserved), np.empty(reserved), np.empty(reserved)
    scratch, rank = np.empty((3, reserved)), np.empty(reserved, np.int64)
    schedule = np.empty(own.shape[1])
    for f in order:
        feedback(links[f][:1], own[f], lane, table, capacity, path_load, first)
        feedback(links[f], own[f], lane, table, capacity, path_load, headroom)
        _follow(flows, f, upstream, reach)
        decide(
            flows,
            f,
            path_load,
            headroom,
            first,
            reserved,
            part,
            planned,
            waiting,
            rules,
            schedule,
            scratch,
            rank,
        )
        for slot in range(reserved, len(schedule)):
            schedule[slot] = own[f, (lane + slot) % len(schedule)]
        announce(links[f], own[f], schedule, lane, table)
        rate[f] = schedule[0]
        reach[f] = min(flows[f].sent + rate[f] * part * rules[0].slot_s, flows[f].total)


@compiled
def _limit_rates(rows: Ints, flows: Flows, upstream: Ints, left_s: float, rate: Floats, reach: Floats) -> int:
    """Lower the rates of `rows` to what the flows can use in the `left_s` until the slot ends; return how
    many were lowered."""
    lowered = 0
    for f in rows:
        reach[f] = min(flows[f].sent + rate[f] * left_s, flows[f].total)
    for f in rows:
        _follow(flows, f, upstream, reach)
        _, limit, _ = dependency(flows, f)
        limit = max(limit, flows[f].sent)
        if reach[f] > limit + EXACT * flows[f].total:
            rate[f] = (limit - flows[f].sent) / left_s
            reach[f] = limit
            lowered += 1
    return lowered


class SlottedTransport:
    """Transport in time slots; the module describes the policies.

    `rounds` is how often each flow decides and announces at a boundary. `cross` (share of each link, 0 to 1)
    is the mean cross traffic. It is drawn per link and slot from `seed`, and so is the order of jobs within a
    size class. Policy `slots` runs `scheduler`. `usage` records the links' training traffic. `marked` counts
    the segments that links have marked.
    """

    def __init__(
        self,
        topology: Topology,
        policy: SlotPolicy = "slots",
        parameters: Parameters = SIMULATED,
        *,
        rounds: int = 1,
        cross: float = 0.0,
        seed: int = 0,
        check: bool | None = None,
        gain: Gain = FAIR,
        marking: Marking | None = None,
        flow_times: bool = False,
        usage: Usage | None = None,
        scheduler: type[SlotScheduler] = SlotScheduler,
    ) -> None:
        if policy not in get_args(SlotPolicy):
            raise BadInput(f"slot policy {policy!r} is unknown; use one of {', '.join(get_args(SlotPolicy))}")
        if rounds < 1:
            raise BadInput(f"there are {rounds} rounds of decisions; give at least 1")
        if not 0.0 <= cross < 1.0:
            raise BadInput(f"cross traffic is {cross} of a link; give a share from 0 to below 1")
        self.topology = topology
        self.policy = policy
        self.parameters = parameters
        self.rounds = rounds
        self.cross = cross
        self.seed = seed
        self.check = checking(check)
        self.gain = gain
        self.marking = marking
        self.marked = 0.0
        self.flow_times = flow_times
        self.usage = usage
        self.decision_seconds: list[float] = []
        self.decided_flows: list[int] = []
        self._scheduler = scheduler(parameters)
        self._flows = FlowTable(hops=2)
        self._coflows = CoflowTable()
        # Indexed by row of the flow table:
        self._decided = np.zeros(0, FLOW)
        self._upstream = np.zeros((0, 2), np.int64)  # rows that the flow follows: first, after the last
        self._process = np.zeros(0, np.int64)  # the row that represents the flows of a job on a host
        self._draw = np.zeros(0)
        self._own = np.zeros((0, parameters.horizon))  # announced rates, by lane
        self._seen = np.zeros((0, parameters.window))
        self._reach = np.zeros(0)  # bytes sent by the slot's end
        self._table = np.zeros((len(topology.capacity), parameters.horizon))
        self._draws = -1  # number of the draw of the order
        self._slot = -1
        self._due: int | None = None
        self._order = 0

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        links = links_of(coflow, self.topology)
        first, last = self._flows.add(links, coflow.size)
        self._resize()
        self._coflows.add(
            handle=handle,
            first=first,
            last=last,
            order=self._order,
            job=job,
            total=float(coflow.size.sum()),
            since=now,
            finish=math.inf,
        )
        self._order += 1
        if len(self._coflows) == 1:
            # Without flows, slots did not advance: events that were due may have passed.
            self._due = max(math.ceil(now / self.parameters.slot_s * (1.0 - SAME)), self._slot + 1)
        rows = slice(first, last)
        structure = _structure(coflow)
        link = self.topology.capacity[links[:, 0]]
        decided = self._decided[rows]
        decided["role"] = structure.role
        decided["chunk"] = structure.chunk
        decided["link"] = link
        decided["total"] = decided["ready"] = coflow.size
        decided["siblings"] = first + structure.siblings
        self._process[rows] = first + structure.process
        self._upstream[rows] = first + structure.upstream
        self._own[rows] = 0.0
        self._seen[rows] = link[:, None] * self.parameters.payload
        self._draw[rows] = self._drawn(job, self._due or 0)

    def next_event(self) -> float:
        """See Transport."""
        if not len(self._coflows):
            return math.inf
        due = math.inf if self._due is None else self._due * self.parameters.slot_s
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
        slot = self._due
        if slot is None or now < slot * self.parameters.slot_s:
            return
        rows = self._settle(slot * self.parameters.slot_s, slot)
        self._due = slot + 1 if len(self._coflows) else None
        if self._due is None:
            return
        available = self._available(slot)
        begin = clock_s()
        if self.policy == "slots":
            self._rank(rows, slot)
            for _ in range(self.rounds):
                self._decide_slots(rows, slot, self.parameters.reserved)
        else:
            self._share(rows, available)
        self.decision_seconds.append(clock_s() - begin)
        self.decided_flows.append(len(rows))
        planned = self._flows.rate[rows].copy()
        self._carry_out(rows, available)
        if self.cross:
            self._observe(rows, planned)
        if self.marking is not None:
            self._mark(rows, planned, available)

    def _settle(self, now: float, slot: int, part: float = 1.0) -> Ints:
        """Bring the flows up to `now`, when `part` of `slot` is left; return the rows of those that go on."""
        flows, decided, its = self._flows, self._decided, self.parameters
        settle(np.arange(len(self._coflows)), now, self._coflows, flows, self.usage)
        self._pass_slots(slot)
        rows = self._rows()
        decided["sent"][rows] = flows.size[rows] - flows.remaining[rows]
        announced = self._own[rows, slot % its.horizon] * part * its.slot_s
        self._reach[rows] = np.minimum(decided["sent"][rows] + announced, decided["total"][rows])
        unfinished: Ints = rows[flows.remaining[rows] > 0.0]
        return unfinished

    def _carry_out(self, rows: Ints, available: Floats, part: float = 1.0) -> None:
        """Lower rates to what links and the flows upstream allow in the `part` of the slot that is left."""
        squeeze(rows, self._flows.links, available, self._flows.rate)
        if self.policy == "slots" or self.cross:
            while self._limit(rows, part):  # a lower rate may limit the flows that follow
                pass
        if self.check:
            assert_feasible(self._flows.links, rows, self._flows.rate, self.topology, self.policy)
        predict(self._coflows, self._flows)

    def _observe(self, rows: Ints, planned: Floats) -> None:
        decided = self._decided[rows]
        self._seen[rows] = self._scheduler.observed(
            self._seen[rows], decided["link"], planned, self._flows.rate[rows], decided["others"]
        )

    def job_done(self, job: int) -> None:
        """See Transport."""

    def _rank(self, rows: Ints, slot: int) -> None:
        """Write the positions of `rows` in the order of decisions, and their bounds B."""
        flows, decided, its = self._flows, self._decided, self.parameters
        if slot // its.redraw != self._draws:
            self._draws = slot // its.redraw
            for (first, last), job in zip(self._spans(), self._coflows.ints("job"), strict=True):
                self._draw[first:last] = self._drawn(int(job), slot)
        processes = self._process[rows]
        left: Floats = np.bincount(processes, weights=flows.remaining[rows])[processes].astype(np.float64)
        decided["rank"][rows] = self._scheduler.ranks(
            left, decided["link"][rows], self._draw[rows], decided["role"][rows]
        )
        decided["bound"][rows] = self._seen[rows].max(axis=1)

    def _decide_slots(self, rows: Ints, slot: int, reserved: int, part: float = 1.0) -> None:
        """Let `rows` decide about `reserved` slots, the first of which is `slot`, of which `part` is left."""
        flows, decided = self._flows, self._decided
        lane = slot % self.parameters.horizon
        lanes = (lane + np.arange(reserved)) % self.parameters.horizon
        now = self._scheduler.round(decided, rows, np.take(self._own, lanes, axis=1))
        _decide_slots(
            now.order,
            decided,
            self._upstream,
            flows.links,
            self._own,
            self._table,
            self.topology.capacity,
            lane,
            now.planned,
            now.waiting,
            now.rules,
            part,
            flows.rate,
            self._reach,
        )

    def _drawn(self, job: int, slot: int) -> float:
        return self._scheduler.draw(f"{self.seed} {job}", slot)

    def _rows(self) -> Ints:
        """Return the rows of all flows."""
        rows: Ints = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in self._spans())])
        return rows

    def _spans(self) -> list[tuple[int, int]]:
        """Return the first row of each coflow and the one after its last."""
        return list(zip(self._coflows.ints("first"), self._coflows.ints("last"), strict=True))

    def _share(self, rows: Ints, available: Floats) -> None:
        """Set shares and lower them to what flows can use. Under max-min fairness, give the rest once to the
        flows that can use it."""
        flows = self._flows
        if self.policy == "equal":
            equal_share(flows.links, rows, available, flows.rate)
            self._limit(rows)
            return
        flows.rate[rows] = 0.0
        weights = self._weights(rows)
        progressive_fill(flows.links, rows, weights, available.copy(), flows.rate)
        shares = flows.rate[rows].copy()
        if self._limit(rows):
            residual = self._residual(rows, available)
            weight = np.where(flows.rate[rows] < shares, 0.0, weights)
            progressive_fill(flows.links, rows, weight, residual, flows.rate)
            self._limit(rows)

    def _weights(self, rows: Ints) -> Floats:
        """Return MLTCP's F of each flow's progress (rows,)."""
        progress = self._decided["sent"][rows] / self._decided["total"][rows]
        return self.gain.each(progress)

    def _mark(self, rows: Ints, planned: Floats, available: Floats) -> None:
        """Count what links mark of the bytes that are sent in the slot."""
        assert self.marking is not None
        flows = self._flows
        offered = flows.rate.copy()
        offered[rows] = planned
        queues = queueing(flows.links, rows, flows.rate, offered, available, self.policy == "slots")
        if not queues.any():
            return
        sent = np.minimum(flows.rate[rows] * self.parameters.slot_s, flows.remaining[rows])
        weights = self._weights(rows)
        for link in np.flatnonzero(queues):
            here = (flows.links[rows] == link).any(axis=1)
            part = self.marking.part(float(weights[here].sum()), float(available[link]))
            self.marked += part * float(sent[here].sum()) / self.marking.segment

    def _limit(self, rows: Ints, part: float = 1.0) -> int:
        left_s = part * self.parameters.slot_s
        return _limit_rates(rows, self._decided, self._upstream, left_s, self._flows.rate, self._reach)

    def _residual(self, rows: Ints, available: Floats) -> Floats:
        used = np.zeros(len(available) + 1)  # the last element takes the padding of routes
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

    def _pass_slots(self, slot: int) -> None:
        """Advance the window of the load tables, so that it begins at `slot`."""
        horizon = self.parameters.horizon
        for passed in range(max(self._slot, 0), min(slot, max(self._slot, 0) + horizon)):
            self._table[:, passed % horizon] = 0.0
            self._own[:, passed % horizon] = 0.0
        self._slot = max(slot, self._slot)

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
        more = len(self._flows.size) - len(self._reach)
        if more > 0:
            for name in ("_decided", "_upstream", "_process", "_draw", "_own", "_seen", "_reach"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]), old.dtype)]))


@dataclass(frozen=True)
class _Structure:
    """The structure of a coflow, by row: role, the rows that represent siblings and process, and the rows
    followed."""

    role: Ints
    chunk: float
    siblings: Ints
    process: Ints
    upstream: Ints


@functools.lru_cache(STRUCTURES)
def _structure(coflow: Coflow) -> _Structure:
    role, chunk, upstream = np.zeros(len(coflow.src), np.int64), 0.0, np.zeros((len(coflow.src), 2), np.int64)
    if isinstance(coflow, Pipelined):
        role, chunk, upstream = coflow.role, coflow.chunk, coflow.upstream_rows()
    siblings = _representatives(coflow.src * len(Role) + role)
    return _Structure(role, chunk, siblings, _representatives(coflow.src), upstream)


def _representatives(keys: Ints) -> Ints:
    """Return for each of `keys` (n,) the index of the first equal key."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse]
