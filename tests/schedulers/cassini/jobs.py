"""Random profiles for tests."""

from __future__ import annotations

import numpy as np

from schedulers.cassini.profile import Profile, of_ups

CAPACITY = 1.0


def random_profile(random: np.random.Generator, periods: list[float], most: float = 0.6) -> Profile:
    """Return a job with a period out of `periods` and one or two Up phases, of at most `most` of it."""
    period = float(random.choice(periods))
    up = period * random.uniform(0.1, most)
    rate = random.uniform(0.3, 1.0)
    if random.random() < 0.4:
        return of_ups(period, [(0.0, 0.4 * up, rate), (0.5 * period, 0.5 * period + 0.6 * up, 0.5 * rate)])
    return of_ups(period, [(period - up, period, rate)])
