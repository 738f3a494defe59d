"""A training job's demand on a link over one iteration (Cassini's Up and Down phases)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from schedulers.compiled import Floats


@dataclass(frozen=True)
class Phase:
    """`seconds` at a demand of `rate` bytes/s; a Down phase has rate 0."""

    seconds: float
    rate: float


@dataclass(frozen=True)
class Profile:
    """Phases that repeat forever, the first from time 0. Raises ValueError for invalid phases."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        values = [v for phase in self.phases for v in (phase.seconds, phase.rate)]
        if not all(math.isfinite(v) and v >= 0.0 for v in values) or not self.period > 0.0:
            raise ValueError(
                f"phases need finite durations and rates of at least 0, and a positive sum: {self.phases}"
            )

    @cached_property
    def period(self) -> float:
        """Duration of an iteration alone in the network, s."""
        return math.fsum(phase.seconds for phase in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes that an iteration sends."""
        return sum(phase.seconds * phase.rate for phase in self.phases)

    @property
    def peak(self) -> float:
        """The highest demand, bytes/s."""
        return max(phase.rate for phase in self.phases)

    @cached_property
    def ups(self) -> Floats:
        """The Up phases, shape (phases, 3): start and end (s), and rate (bytes/s)."""
        edges = [0.0, *np.cumsum([phase.seconds for phase in self.phases]).tolist()]
        rows = [
            (start, end, phase.rate)
            for (start, end), phase in zip(pairwise(edges), self.phases, strict=True)
            if phase.rate > 0.0 and phase.seconds > 0.0
        ]
        return np.array(rows).reshape(-1, 3)

    def demand(self, times: Floats) -> Floats:
        """Return the demand at `times` (any shape), bytes/s."""
        ends = np.cumsum([phase.seconds for phase in self.phases])
        rates = np.array([phase.rate for phase in self.phases])
        at = np.mod(times, self.period)
        result: Floats = rates[np.minimum(np.searchsorted(ends, at, side="right"), len(rates) - 1)]
        return result

    def waiting(self, period: float) -> Profile:
        """Return the profile of a job that waits after each iteration until `period` (s) has passed.

        Raises ValueError if the period is shorter than the iteration, beyond rounding.
        """
        rest = period - self.period
        if rest < -1e-9 * period:
            raise ValueError(f"an iteration of {self.period} s does not fit a period of {period} s")
        return Profile((*self.phases, Phase(rest, 0.0))) if rest > 1e-12 * period else self

    def at_rate(self, rate: float) -> Profile:
        """Return the profile that sends the same bytes at `rate` (bytes/s): what a job that was measured
        while others took part of its link sends alone."""
        return Profile(
            tuple(
                Phase(phase.seconds * phase.rate / rate, rate) if phase.rate > 0.0 else phase
                for phase in self.phases
            )
        )

    def padded(self, seconds: float) -> Profile:
        """Return the profile whose Up phases last longer by `seconds`, or as long as Down phases allow."""
        phases: list[Phase] = []
        for before, phase in zip((self.phases[-1], *self.phases), self.phases, strict=False):
            if before.rate > 0.0 and phase.rate == 0.0:
                more = min(seconds, phase.seconds)
                phases += [Phase(more, before.rate), Phase(phase.seconds - more, 0.0)]
            else:
                phases.append(phase)
        return Profile(tuple(phase for phase in phases if phase.seconds > 0.0))


def up_down(down_s: float, up_s: float, rate: float) -> Profile:
    """Return the profile that computes for `down_s` and then sends at `rate` for `up_s`."""
    return Profile((Phase(down_s, 0.0), Phase(up_s, rate)))


def of_ups(period: float, ups: Iterable[tuple[float, float, float]]) -> Profile:
    """Return the profile with Up phases from `ups`: start and end (s into the iteration), rate (bytes/s).

    Raises ValueError if one is empty, overlaps another, or is not within the period.
    """
    rows = sorted(ups)
    if not (period > 0.0 and math.isfinite(period)):
        raise ValueError(f"the period is {period} s; it needs to be above 0")
    for start, end, _ in rows:
        if not 0.0 <= start < end <= period:
            raise ValueError(
                f"a phase from {start} to {end} s is empty, or not within the period, {period} s"
            )
    for (_, end, _), (start, _, _) in pairwise(rows):
        if start < end:
            raise ValueError(f"a phase begins at {start} s, before the one ahead of it ends, at {end} s")
    phases: list[Phase] = []
    now = 0.0
    for start, end, rate in rows:
        if start > now:
            phases.append(Phase(start - now, 0.0))
        phases.append(Phase(end - start, rate))
        now = end
    if now < period:
        phases.append(Phase(period - now, 0.0))
    return Profile(tuple(phases))
