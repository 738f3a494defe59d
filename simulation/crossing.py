"""Coflows beside cross traffic: flows that nobody schedules, which send as much as they can for some time.

Cross traffic has its max-min fair share of every link, whatever the policy does. Jobs share what it leaves:
in the slot scheduler's problem, a link's capacity excludes cross traffic, which is not to suffer
(flow-scheduling paper, IV).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from schedulers.coflow.filling import link_loads, max_min
from schedulers.coflow.view import CoflowPolicy, View
from schedulers.compiled import Routes
from simulation.engine import SAME, Finished
from simulation.scheduled import ScheduledTransport
from simulation.topology import Topology


class CrossFlow(NamedTuple):
    """A flow that sends from `start` to `end` (s); hosts are numbers."""

    source: int
    destination: int
    start: float
    end: float


class CrossedTransport(ScheduledTransport):
    """Move coflows at the rates of `policy`, on what `cross` traffic leaves of each link."""

    def __init__(
        self,
        topology: Topology,
        policy: CoflowPolicy,
        cross: Sequence[CrossFlow],
        *,
        check: bool | None = None,
    ) -> None:
        super().__init__(topology, policy, check=check)
        source, destination = (np.array([each[i] for each in cross], np.int64) for i in (0, 1))
        self._routes = topology.routes(source, destination, np.arange(len(cross)))
        self._start, self._end = (np.array([each[i] for each in cross]) for i in (2, 3))
        self._changes = np.unique(np.concatenate([self._start, self._end]))
        self._now = 0.0

    def next_event(self) -> float:
        """See Transport: cross traffic that starts or ends while coflows send is an event, too."""
        place = int(np.searchsorted(self._changes, self._now * (1.0 + SAME), "right"))
        change = self._changes[place] if len(self._coflows) and place < len(self._changes) else math.inf
        return min(super().next_event(), float(change))

    def advance(self, now: float) -> list[Finished]:
        """See Transport."""
        passed, self._now = self._now, now
        first, last = np.searchsorted(self._changes, [passed * (1.0 + SAME), now * (1.0 + SAME)], "right")
        if last > first:
            self._observe(now)
        return super().advance(now)

    def view(self) -> View:
        """Return what the policy can see now: its links have what cross traffic leaves."""
        view = super().view()
        now = self._now * (1.0 + SAME)
        crossing = np.flatnonzero((self._start <= now) & (self._end > now))
        if len(crossing):
            flows = view.active_flows()
            links = _rows(self._flows.links[flows], self._routes[crossing])
            rate = np.zeros(len(links))
            max_min(links, np.arange(len(links)), self.topology.capacity, rate)
            taken = np.zeros(len(self.topology.capacity))
            link_loads(links, np.arange(len(flows), len(links)), rate, taken)
            view.capacity = np.maximum(self.topology.capacity - taken, 0.0)
        return view


def _rows(first: Routes, second: Routes) -> Routes:
    """Return the routes of both as one table, padded to the longer of the two."""
    hops = max(first.shape[1], second.shape[1])
    table = np.full((len(first) + len(second), hops), -1, first.dtype)
    table[: len(first), : first.shape[1]] = first
    table[len(first) :, : second.shape[1]] = second
    return table
