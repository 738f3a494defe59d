"""When the iterations of a job start (Cassini, 4.4.2, step 3: apply time-shifts, and adjust drift).

A pace is a grid of times, one period apart. Each process of a job follows its pace by itself: it waits for
the next point of the grid if the pace is new, if it is early, or if it stays later than a bound. So one rule
shifts and corrects, and no wait is longer than a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

PATIENCE = 5
"""Starts in a row that are late by more than the bound, of which the last waits. Whoever has set the pace
can move the others' grids instead: they then wait for as long as one job is late, not for a period."""
REST = 20
"""Least number of iterations between two corrections. A pace that a job cannot keep, or clocks by which the
hosts of one job disagree, then cost at most a period in 20."""


@dataclass(frozen=True)
class Pace:
    """Iterations start at `anchor_ns` plus whole periods. All times are in ns of one clock.

    Raises ValueError for a period that is not positive, or a bound that is negative or half a period.
    """

    anchor_ns: int
    period_ns: int
    bound_ns: int
    """How much a start may be off before it is corrected."""

    def __post_init__(self) -> None:
        if self.period_ns <= 0:
            raise ValueError(f"period {self.period_ns} ns: must be positive")
        if not 0 <= self.bound_ns < self.period_ns / 2:
            raise ValueError(f"bound {self.bound_ns} ns: must be from 0 to half a period")

    def drift_ns(self, now_ns: int) -> int:
        """Return how much later than a point of the grid `now_ns` is (negative: earlier), by the nearest."""
        return (now_ns - self.anchor_ns + self.period_ns // 2) % self.period_ns - self.period_ns // 2

    def next_ns(self, now_ns: int) -> int:
        """Return the first point of the grid that is not before `now_ns`."""
        return now_ns + (self.anchor_ns - now_ns) % self.period_ns


class Kind(IntEnum):
    """Why an iteration started when it did."""

    FREE = 0
    """No pace was set."""
    KEPT = 1
    """It was late by at most the bound, or was early and waited for the grid."""
    SHIFTED = 2
    """The pace is new: it waited for the grid."""
    CORRECTED = 3
    """It was late by more than the bound, and waited for the grid."""
    LATE = 4
    """It is late by more than the bound, but not for long, or it was corrected only recently."""


@dataclass(frozen=True)
class Start:
    """An iteration starts at `at_ns`; before waiting, it was off the grid by `drift_ns` (negative: early)."""

    at_ns: int
    drift_ns: int
    kind: Kind

    @property
    def late_ns(self) -> int:
        """How much later than the grid it starts."""
        return max(0, self.drift_ns) if self.kind in (Kind.KEPT, Kind.LATE) else 0


class Follower:
    """One process's starts."""

    def __init__(self) -> None:
        self._pace: Pace | None = None
        self._due_ns = 0  # the point of the grid at which the last iteration was due
        self._off = 0  # starts in a row that were late by more than the bound
        self._rested = REST  # starts since the last correction

    def start(self, pace: Pace | None, now_ns: int) -> Start:
        """Return when the iteration starts that could start now; at most one period later."""
        before, self._pace = self._pace, pace
        if pace is None:
            return Start(now_ns, 0, Kind.FREE)
        self._rested += 1
        if before is None:
            drift = pace.drift_ns(now_ns)
            if abs(drift) > pace.bound_ns:
                self._due_ns = pace.next_ns(now_ns)
                return self._on_grid(self._due_ns, drift, Kind.SHIFTED)
            self._due_ns = now_ns - drift
            moved = False
        else:
            due = self._due_ns + before.period_ns
            # A grid that has moved leaves the job its turn, only later: it has not become late by that.
            self._due_ns = due if pace == before else pace.next_ns(due - pace.bound_ns)
            moved = self._due_ns - due > pace.bound_ns
            ahead = self._due_ns - now_ns
            if abs(ahead) > pace.period_ns:  # it skips some, or did not wait
                self._due_ns -= int(ahead / pace.period_ns) * pace.period_ns
            drift = now_ns - self._due_ns
        if drift <= pace.bound_ns:
            return self._on_grid(max(now_ns, self._due_ns), drift, Kind.SHIFTED if moved else Kind.KEPT)
        self._off += 1
        if self._off < PATIENCE or self._rested <= REST:
            return Start(now_ns, drift, Kind.LATE)
        self._rested = 0
        self._due_ns = pace.next_ns(now_ns)
        return self._on_grid(self._due_ns, drift, Kind.CORRECTED)

    def _on_grid(self, at_ns: int, drift_ns: int, kind: Kind) -> Start:
        self._off = 0
        return Start(at_ns, drift_ns, kind)
