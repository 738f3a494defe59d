"""Confidence intervals of means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

    def percent(self) -> str:
        """Return a fraction as in `-17.0 ± 1.2 %`."""
        half = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:+.1f}{half} %"

    def factor(self) -> str:
        """Return a change as a fraction as in `× 3.68 ± 0.12`: how many times the value is."""
        return "× " + Interval(1.0 + self.mean, self.half).show()


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values, and its 95 % interval by Student's t distribution."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    from scipy.special import stdtrit  # takes a while to load

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean, quantile * stdev(values) / math.sqrt(len(values)))


def relative(first: Mapping[int, float], second: Mapping[int, float]) -> Interval:
    """Return the change from `first` to `second`, values by seed, as a fraction of the first's mean.

    With the same seeds in both, the interval is of the differences by seed, so that what a seed does to both
    cancels out. Otherwise it is by Welch's t test.
    """
    base = fmean(first.values())
    if first.keys() == second.keys():
        found = interval([second[seed] - value for seed, value in first.items()])
    else:
        found = _welch(list(first.values()), list(second.values()))
    return Interval(found.mean / base, None if found.half is None else found.half / base)


def _welch(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the difference of two means, with its interval."""
    mean = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return Interval(mean, None)
    if not (any(each != first[0] for each in first) or any(each != second[0] for each in second)):
        return Interval(mean, 0.0)
    from scipy.stats import ttest_ind  # takes a second to load

    span = ttest_ind(second, first, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(mean, float(span.high - span.low) / 2)
