"""Confidence intervals of means, and percentiles."""

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

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0, so that its mean is hardly there by chance."""
        return self.half is not None and abs(self.mean) > self.half

    def bar(self) -> tuple[float, float]:
        """Return how far an error bar reaches below and above the mean of a quantity that is at least 0."""
        half = self.half or 0.0
        return min(half, self.mean), half

    def show(self, form: str = ".2f") -> str:
        """Return a quantity that is at least 0 as in `10.83 ± 0.21`, both numbers in the given format.

        Where the interval would reach below 0, it is shown by its ends: `2.10 (0.00 to 4.90)`.
        """
        if self.half is None:
            return f"{self.mean:{form}}"
        if self.half > self.mean:
            return f"{self.mean:{form}} ({0:{form}} to {self.mean + self.half:{form}})"
        return f"{self.mean:{form}} ± {self.half:{form}}"

    def percent(self) -> str:
        """Return the change of a quantity that is at least 0, a fraction, as in `-17.0 ± 1.2 %`.

        Where the interval would reach below -100 %, it is shown by its ends.
        """
        if self.half is None:
            return f"{100 * self.mean:+.1f} %"
        if self.half > 1.0 + self.mean:
            return f"{100 * self.mean:+.1f} % (-100 to {100 * (self.mean + self.half):+.1f} %)"
        return f"{100 * self.mean:+.1f} ± {100 * self.half:.1f} %"

    def factor(self) -> str:
        """Return a change as a fraction as in `× 3.68 ± 0.12`: how many times the value is."""
        return "× " + Interval(1.0 + self.mean, self.half).show()


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile by linear interpolation.

    None if there are too few values for it: less than one lies above it, such as of 60 above the 99th.
    """
    if not values or len(values) * (100 - percent) < 100:
        return None
    import numpy as np  # takes a while to load

    return float(np.percentile(values, percent))


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
