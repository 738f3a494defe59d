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
MOVED = 0.5
"""The part of the bound beyond which grids are moved."""
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
    """An iteration could start at `now_ns` and starts at `at_ns`; before waiting, it was off the grid by
    `drift_ns` (negative: early)."""

    now_ns: int
    at_ns: int
    drift_ns: int
    kind: Kind

    @property
    def waited_ns(self) -> int:
        """How long it is delayed."""
        return self.at_ns - self.now_ns

    @property
    def late_ns(self) -> int:
        """How much later than the grid it starts."""
        return lateness(self.drift_ns, self.kind)


@dataclass(slots=True)
class Memory:
    """What `follow` keeps from one start of a process to the next. All times are in ns."""

    kept_anchor: int = 0
    kept_period: int = 0
    """Of the pace at the last start; 0: there was none."""
    kept_bound: int = 0
    due: int = 0
    """The point of the grid at which the last iteration was due."""
    off: int = 0
    """Starts in a row that were late by more than the bound."""
    rested: int = REST
    """Starts since the last correction."""


def follow(memory: Memory, anchor: int, period: int, bound: int, now: int) -> tuple[int, int, int]:
    """Return when the iteration starts that could start `now` (at most one period later), how far `now` is
    off the grid, and the start's Kind. A pace of period 0 is none.

    The simulator compiles this function, with a row of its jobs as `memory`.
    """
    before = memory.kept_period
    same = anchor == memory.kept_anchor and period == before and bound == memory.kept_bound
    memory.kept_anchor, memory.kept_period, memory.kept_bound = anchor, period, bound
    if period == 0:
        return now, 0, Kind.FREE
    memory.rested += 1
    kind = Kind.KEPT
    if before == 0:
        drift = (now - anchor + period // 2) % period - period // 2
        memory.due = now - drift
        if abs(drift) > bound:
            memory.due = now + (anchor - now) % period
            memory.off = 0
            return memory.due, drift, Kind.SHIFTED
    else:
        due = memory.due + before
        # A grid that has moved leaves the job its turn, only later: it has not become late by that.
        memory.due = due if same else due - bound + (anchor - due + bound) % period
        if memory.due - due > bound:
            kind = Kind.SHIFTED
        ahead = memory.due - now
        if ahead > period:  # it did not wait
            memory.due -= ahead // period * period
        elif -ahead > period:  # it skips some
            memory.due += -ahead // period * period
        drift = now - memory.due
    if drift <= bound:
        memory.off = 0
        return max(now, memory.due), drift, kind
    memory.off += 1
    if memory.off < PATIENCE or memory.rested <= REST:
        return now, drift, Kind.LATE
    memory.off = memory.rested = 0
    memory.due = now + (anchor - now) % period
    return memory.due, drift, Kind.CORRECTED


def lateness(drift: int, kind: int) -> int:
    """Return by how much an iteration starts after its point of the grid, ns."""
    return max(0, drift) if kind == Kind.KEPT or kind == Kind.LATE else 0


def moves(late: float, bound: float) -> bool:
    """Whether a job that is `late` (a time) is late enough that the grids of all that it may meet move by as
    much."""
    return late > MOVED * bound


class Follower:
    """One process's starts."""

    def __init__(self) -> None:
        self._memory = Memory()

    def start(self, pace: Pace | None, now_ns: int) -> Start:
        """Return when the iteration starts that could start now; at most one period later."""
        of = (pace.anchor_ns, pace.period_ns, pace.bound_ns) if pace else (0, 0, 0)
        at, drift, kind = follow(self._memory, *of, now_ns)
        return Start(now_ns, at, drift, Kind(kind))
