"""Storage for the active flows: rows of arrays, which are reused when a coflow leaves."""

from __future__ import annotations

import numpy as np

from schedulers.compiled import Floats, Ints, Routes


class FlowTable:
    """Rows of flows, contiguous for each coflow. Memory grows with the active flows, not with all flows so
    far."""

    def __init__(self, hops: int) -> None:
        self.links: Routes = np.full((1024, hops), -1, np.int32)
        self.size: Floats = np.zeros(1024)
        self.remaining: Floats = np.zeros(1024)
        self.rate: Floats = np.zeros(1024)
        self.done: Floats = np.zeros(1024)
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def add(self, links: Routes, size: Floats) -> tuple[int, int]:
        """Store the flows of a coflow; return its first row and the one after its last."""
        n = len(size)
        free = self._free.get(n)
        first = free.pop() if free else self._end
        if first == self._end:
            self._end += n
            self._grow(links.shape[1])
        rows = slice(first, first + n)
        self.links[rows] = -1
        self.links[rows, : links.shape[1]] = links
        self.size[rows] = size
        self.remaining[rows] = size
        self.rate[rows] = 0.0
        self.done[rows] = np.nan
        return first, first + n

    def remove(self, first: int, last: int) -> None:
        """Free the rows."""
        self.remaining[first:last] = 0.0
        self.rate[first:last] = 0.0
        self._free.setdefault(last - first, []).append(first)

    def _grow(self, hops: int) -> None:
        rows, width = self.links.shape
        if self._end > rows or hops > width:
            more = max(2 * rows, self._end) if self._end > rows else rows
            links = np.full((more, max(hops, width)), -1, np.int32)
            links[:rows, :width] = self.links
            self.links = links
            for name in ("size", "remaining", "rate", "done"):
                old: Floats = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros(more - len(old))]))


class CoflowTable:
    """The active coflows as arrays. Removal moves the last coflow into the gap, so ties are broken by
    `order`, never by row."""

    _INTS = ("handle", "first", "last", "order", "job")
    _FLOATS = ("bottleneck", "total", "sent", "since", "finish", "speed", "waiting", "chunk")

    def __init__(self) -> None:
        self._n = 0
        for name in self._INTS:
            setattr(self, "_" + name, np.zeros(64, np.int64))
        for name in self._FLOATS:
            setattr(self, "_" + name, np.zeros(64))

    def __len__(self) -> int:
        return self._n

    def ints(self, name: str) -> Ints:
        """Return a view of an integer column."""
        column: Ints = getattr(self, "_" + name)
        return column[: self._n]

    def floats(self, name: str) -> Floats:
        """Return a view of a real column."""
        column: Floats = getattr(self, "_" + name)
        return column[: self._n]

    def add(self, **values: float) -> None:
        """Append a coflow; columns not named are 0."""
        if self._n == len(self._handle_column()):
            for name in self._INTS + self._FLOATS:
                old = getattr(self, "_" + name)
                setattr(self, "_" + name, np.concatenate([old, np.zeros_like(old)]))
        for name in self._INTS + self._FLOATS:
            getattr(self, "_" + name)[self._n] = values.get(name, 0)
        self._n += 1

    def remove(self, row: int) -> None:
        """Remove a coflow."""
        self._n -= 1
        for name in self._INTS + self._FLOATS:
            column = getattr(self, "_" + name)
            column[row] = column[self._n]

    def _handle_column(self) -> Ints:
        column: Ints = self._handle  # type: ignore[attr-defined]
        return column
