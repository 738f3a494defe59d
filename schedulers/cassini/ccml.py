"""CCML: shift the jobs of a host so that their communication phases interleave (Rajasekaran et al., HotNets
2022).

As the slot scheduler's paper uses it (VII): iterations are profiled in advance, a host knows the jobs placed
on it and nothing of the rest of the network; flows then share links as congestion control does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedulers.cassini.profile import Profile
from schedulers.compiled import Floats


def excess(
    present: Sequence[tuple[Profile, float]],
    profile: Profile,
    shifts: Floats,
    capacity: float,
    span_s: float,
    samples: int,
) -> Floats:
    """Return, per shift in `shifts` (S,), the mean demand above `capacity` (bytes/s) over `span_s` if
    `profile` starts that late.

    `present` are the profiles already there and the times (s) at which their iterations began, relative to
    now.
    """
    times: Floats = np.linspace(0.0, span_s, samples, endpoint=False) + 0.5 * span_s / samples
    load = np.zeros(samples)
    for other, begin in present:
        load += other.demand(times - begin)
    added = profile.demand(times[None, :] - shifts[:, None])
    # Before its first iteration the job sends nothing.
    added[times[None, :] < shifts[:, None]] = 0.0
    result: Floats = np.maximum(load[None, :] + added - capacity, 0.0).mean(axis=1)
    return result


def best_shift(
    hosts: Sequence[Sequence[tuple[Profile, float]]],
    profile: Profile,
    capacity: float,
    *,
    angles: int = 72,
    iterations: int = 10,
) -> float:
    """Return how long (s) a new job waits before its first iteration so that its phases collide least on its
    hosts.

    `hosts` are the jobs present on each of them. Tries `angles` shifts within one iteration over `iterations`
    of the longest job; among equals the shortest wait wins.
    """
    shifts: Floats = np.linspace(0.0, profile.period, angles, endpoint=False)
    longest = max([profile.period, *(other.period for host in hosts for other, _ in host)])
    samples = min(angles * iterations, 720)
    cost = np.zeros(angles)
    for host in hosts:
        if host:
            cost += excess(host, profile, shifts, capacity, iterations * longest, samples)
    return float(shifts[int(np.argmin(np.round(cost / capacity, 9)))])
