"""Confidence intervals of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean, with half the width of its 95 % confidence interval."""

    mean: float
    half: float | None
    """None: from one value, which has no interval."""

    def show(self, form: str = ".2f") -> str:
        """Return it as in `10.83 ± 0.21`, both numbers in the given format."""
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {self.half:{form}}")


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values, and its 95 % interval by Student's t distribution."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    from scipy.special import stdtrit  # takes a while to load

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean, quantile * stdev(values) / math.sqrt(len(values)))
