"""Slots with decisions at the times at which agents take them (`hostbpf.scheduling.thread`).

`SlottedTransport` lets all flows decide at the slot boundary, as in the paper. Agents plan a slot before it
begins, when their job's turn comes, late in the slot before. A flow that begins to send decides at once,
about what others have left of this slot, and of the next one if it has been planned. A host checks
several times per slot whether its link has room, which its flows then may use.

Simpler than live: all jobs have their turns at the same time, in the order of what they have left, and all
hosts check at the same times.
"""

from __future__ import annotations

import math

import numpy as np

from schedulers.compiled import Ints
from schedulers.slots.host import BEGIN, SPREAD, Parameters
from schedulers.slots.table import announce
from simulation.engine import SAME
from simulation.jobs import Coflow
from simulation.slotted import SlottedTransport
from simulation.topology import Topology

TURN = (BEGIN + SPREAD) / 2.0
"""Part of a slot that is over when the jobs' turns come: the middle of the agents' turns."""
FULL = 0.9
"""Part of a host's link below which its flows' schedules leave room (`hostbpf.scheduling.thread`)."""
CHECKS = 2
"""How often per slot a host checks that (likewise)."""
LEAST_PART = 0.05
"""Flows decide while at least this part of a slot is left."""
BOUNDARY, CHECK, TURNS = range(3)
"""What happens in a slot."""


class TurnsTransport(SlottedTransport):
    """Policy `slots` with turns, checks and decisions of flows that begin.

    With `take_back`, flows that begin also take what flows behind them in the order have planned in this slot
    and the next, and those yield at once. No message could do more, so it bounds what classes of priority in
    the load tables could gain.
    """

    def __init__(
        self,
        topology: Topology,
        parameters: Parameters,
        *,
        take_back: bool = False,
        seed: int = 0,
        check: bool | None = None,
    ) -> None:
        super().__init__(topology, "slots", parameters, seed=seed, check=check)
        self._take_back = take_back
        checks = [((number + 0.5) / CHECKS, CHECK) for number in range(CHECKS)]
        self._moments = sorted([(0.0, BOUNDARY), (TURN, TURNS), *checks])
        self._turns_at = self._moments.index((TURN, TURNS))
        self._passed = 0  # moments since the first slot began
        self._begun: set[int] = set()  # coflows (handles) that have not decided yet

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        if not len(self._coflows):  # without flows nobody has looked at the clock
            while self._time_of(self._passed) < now:
                self._passed += 1
        super().start(handle, job, coflow, now)
        self._begun.add(handle)

    def next_event(self) -> float:
        """See Transport."""
        if not len(self._coflows):
            return math.inf
        return min(float(self._coflows.floats("finish").min()), self._time_of(self._passed))

    def _time_of(self, moment: int) -> float:
        slot, index = divmod(moment, len(self._moments))
        return (slot + self._moments[index][0]) * self.parameters.slot_s

    def decide(self, now: float) -> None:
        """See Transport."""
        happens = set()
        while self._time_of(self._passed) <= now * (1.0 + SAME):
            happens.add(self._moments[self._passed % len(self._moments)][1])
            self._passed += 1
        if not happens and not self._begun:
            return
        slot = (self._passed - 1) // len(self._moments)
        self._due = slot + 1  # whose order coflows that start until then get
        part = min(slot + 1 - now / self.parameters.slot_s, 1.0)
        rows = self._settle(now, slot, part)
        self._withdraw(np.setdiff1d(self._rows(), rows), slot)
        self._rank(rows, slot)
        if part >= LEAST_PART:
            self._let_decide(rows, happens, slot, part)
        self._flows.rate[rows] = self._own[rows, slot % self.parameters.horizon]
        self._carry_out(rows, self.topology.capacity, part)

    def _let_decide(self, rows: Ints, happens: set[int], slot: int, part: float) -> None:
        """Let those of `rows` decide that may."""
        turned = (self._passed - 1) % len(self._moments) >= self._turns_at
        reserved = self.parameters.reserved if turned else 1
        begun = np.intersect1d(rows, self._take_begun())
        if TURNS in happens:
            if self._take_back:
                self._clear(slot + 1)
            self._decide_slots(rows, slot, reserved, part)
        elif len(begun) and self._take_back:
            for each in range(slot, slot + reserved):
                self._clear(each)
            self._decide_slots(rows, slot, reserved, part)
        elif len(begun):
            self._decide_slots(begun, slot, reserved, part)
        if CHECK in happens:
            self._decide_slots(self._with_room(rows, slot), slot, reserved, part)

    def _take_begun(self) -> Ints:
        """Return the rows of flows that have begun since this was asked last."""
        spans = zip(self._coflows.ints("handle"), self._spans(), strict=True)
        rows = [np.arange(*span) for handle, span in spans if int(handle) in self._begun]
        self._begun.clear()
        return np.concatenate([np.zeros(0, np.int64), *rows])

    def _with_room(self, rows: Ints, slot: int) -> Ints:
        """Return those of `rows` whose host's link has room in `slot`."""
        first = self._flows.links[rows, 0]
        planned = np.bincount(first, weights=self._own[rows, slot % self.parameters.horizon])
        with_room: Ints = rows[planned[first] < FULL * self.topology.capacity[first]]
        return with_room

    def _withdraw(self, rows: Ints, slot: int) -> None:
        """Take back what finished flows have planned."""
        for f in rows[self._own[rows].any(axis=1)]:
            nothing = np.zeros(self.parameters.horizon)
            announce(self._flows.links[f], self._own[f], nothing, slot % len(nothing), self._table)

    def _clear(self, slot: int) -> None:
        """Take back what all flows have planned in `slot`."""
        lane = slot % self.parameters.horizon
        self._table[:, lane] = 0.0
        self._own[:, lane] = 0.0
