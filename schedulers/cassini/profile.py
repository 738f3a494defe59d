"""A training job's demand on a link over one iteration (Cassini's Up and Down phases)."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    @property
    def period(self) -> float:
        """Duration of an iteration alone in the network, s."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes that an iteration sends."""
        return sum(phase.seconds * phase.rate for phase in self.phases)

    def demand(self, times: Floats) -> Floats:
        """Return the demand at `times` (any shape), bytes/s."""
        ends = np.cumsum([phase.seconds for phase in self.phases])
        rates = np.array([phase.rate for phase in self.phases])
        at = np.mod(times, self.period)
        result: Floats = rates[np.minimum(np.searchsorted(ends, at, side="right"), len(rates) - 1)]
        return result


def up_down(down_s: float, up_s: float, rate: float) -> Profile:
    """Return the profile that computes for `down_s` and then sends at `rate` for `up_s`."""
    return Profile((Phase(down_s, 0.0), Phase(up_s, rate)))
