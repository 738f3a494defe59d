"""Unified circles: jobs of different periods on one circle, around which each has whole iterations (Cassini,
4.3.2).

The paper's perimeter is the least common multiple of the periods. Measured periods rarely have a short one:
138 and 148 ms have 10.2 s. A job can wait, but it cannot run faster. So each job waits a little at the end of
its iteration, until the periods have a common multiple that is short enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schedulers.compiled import Floats, Ints

ANGLES = 72
"""Samples per iteration of the fastest job: 5° of its own circle."""
MOST = 64
"""The longest circle, in iterations of the fastest job (or one of the slowest, if that is longer)."""
STRETCH = 0.01
"""How much longer a period may become for the sake of a shorter circle, as a fraction."""


@dataclass(frozen=True)
class Common:
    """A common multiple of periods. `perimeter` (s) holds `turns` (jobs,) iterations of each job. `stretch`
    is the largest fraction by which a period had to grow."""

    perimeter: float
    turns: Ints
    stretch: float

    @property
    def periods(self) -> Floats:
        """The jobs' periods on the circle (jobs,), s."""
        result: Floats = self.perimeter / self.turns
        return result


def common_multiple(periods: Sequence[float], *, most: int = MOST, stretch: float = STRETCH) -> Common:
    """Return a common multiple of `periods` (s), of at most `most` iterations of the fastest job.

    It is the least exact one, if that is short enough. Otherwise it is the least one for which no period has
    to grow by more than `stretch`; if there is none, the one for which they grow least.
    """
    given = np.asarray(periods, dtype=float)
    limit = max(most * given.min(), given.max()) * (1.0 + 1e-9)
    multiples = [period * np.arange(1, math.floor(limit / period) + 1) for period in given]
    candidates = np.concatenate(multiples)
    candidates = candidates[candidates >= given.max() * (1.0 - 1e-9)]
    turns = np.floor(candidates[:, None] / given * (1.0 + 1e-9)).astype(np.int64)
    grown = np.maximum(candidates[:, None] / (turns * given) - 1.0, 0.0).max(axis=1)
    for allowed in (1e-7, stretch):
        enough = np.flatnonzero(grown <= allowed)
        if enough.size:
            best = int(enough[np.argmin(candidates[enough])])
            break
    else:
        best = int(np.argmin(grown))
    found = turns[best] // np.gcd.reduce(turns[best])
    # The period that grew least is kept exactly.
    perimeter = float((found * given).max())
    return Common(perimeter, found, float((perimeter / (found * given)).max() - 1.0))


def wrapped(shift: float, period: float) -> float:
    """Return `shift` (s) modulo `period` (s); what is a whole period but for rounding becomes 0."""
    rest = shift % period
    return rest if rest < period * (1.0 - 1e-9) else 0.0


def samples(perimeter: float, periods: Floats, angles: int) -> int:
    """Return how many samples give the fastest job at least `angles` per iteration."""
    return math.ceil(angles * perimeter / float(periods.min()) * (1.0 - 1e-9))
