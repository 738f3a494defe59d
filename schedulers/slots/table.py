"""The load table: what is planned on each link in each of the next K slots (flow-scheduling paper, IV-A).

A table has one row per link and K lanes; slot s is kept in lane s mod K, as switches do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from schedulers.compiled import Floats, Ints, compiled
from schedulers.slots.kernels import HORIZON


@compiled
def announce(links: Ints, before: Floats, after: Floats, first_lane: int, table: Floats) -> None:
    """Replace a flow's part in the load table (links, K lanes) by the rates `after` (K,), by slot.

    `first_lane` is the lane of the first slot. `before` (K,) is the flow's part by lane, and becomes `after`.
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
    """Read the load table along a path without the flow's own part, which `own` (K,) holds by lane.

    Write the sum of loads and the least headroom for as many slots as `path_load` and `headroom` have.
    """
    for slot in range(len(path_load)):
        lane = (first_lane + slot) % len(own)
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
    """Return the rates in `horizon` slots from `begin` of a schedule that starts at `slot`; 0 outside it."""
    window = np.zeros(horizon)
    first, end = max(slot, begin), min(slot + len(schedule), begin + horizon)
    if first < end:
        window[first - begin : end - begin] = schedule[first - slot : end - slot]
    return window


class LoadTable:
    """What is planned per link and slot, and each flow's part in it.

    A flow's schedule replaces its last one. Slots that have passed are cleared.
    """

    def __init__(self, capacity: Floats, horizon: int = HORIZON) -> None:
        self.capacity = capacity
        self.horizon = horizon
        self.slot = 0
        self.table: Floats = np.zeros((len(capacity), horizon))
        self._own: dict[object, tuple[Ints, Floats]] = {}

    def __contains__(self, flow: object) -> bool:
        return flow in self._own

    def flows(self) -> Iterator[object]:
        """Return the flows that have a part in the table."""
        return iter(self._own)

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
        if flow not in self._own:
            self._own[flow] = links, np.zeros(self.horizon)
        _, own = self._own[flow]
        window = in_window(schedule, self.slot if slot is None else slot, self.slot, self.horizon)
        announce(links, own, window, self.slot % self.horizon, self.table)

    def remove(self, flow: object) -> None:
        """Drop a flow that has ended."""
        if flow in self._own:
            links, own = self._own.pop(flow)
            announce(links, own, np.zeros(self.horizon), self.slot % self.horizon, self.table)

    def ask(self, flow: object, links: Ints) -> tuple[Floats, Floats]:
        """Return path load and headroom (K,) without the flow's own part, which is on its last path alone:
        `links` are that path, links of it, or another path."""
        links = np.asarray(links, np.int64)
        path, own = self._own.get(flow) or (links, np.zeros(self.horizon))
        if not _same(path, links) and not set(links.tolist()) <= set(path.tolist()):
            own = np.zeros(self.horizon)
        load, room = np.empty(self.horizon), np.empty(self.horizon)
        feedback(links, own, self.slot % self.horizon, self.table, self.capacity, load, room)
        return load, room


def _same(path: Ints, links: Ints) -> bool:
    return path is links or np.array_equal(path, links)


def warm_up() -> None:
    """Load the compiled code, or compile it, so that no question has to wait for that."""
    table = LoadTable(np.ones(1))
    table.update(None, np.array([0]), np.zeros(HORIZON))
    table.ask(None, np.array([0]))
