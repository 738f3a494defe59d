"""CCML: shift the jobs of a host so that their communication phases interleave (Rajasekaran et al., HotNets
2022).

This follows the slot scheduler's paper (VII). Iterations are profiled in advance. A host knows the jobs
placed on it and nothing about the rest of the network. Flows share links by congestion control.
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
    """Return, for each delay in `shifts` (S,), the mean demand above `capacity` (bytes/s) over `span_s` if
    `profile` starts with that delay.

    `present` holds the profiles already on the host and when their iterations began (s, relative to now).
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
    """Return how long (s) a new job should wait before its first iteration so that its phases overlap least
    with those of other jobs.

    `hosts` lists the jobs already on each of its hosts. The search tries `angles` shifts within one iteration
    and evaluates each over `iterations` of the longest job. Among equal shifts the shortest wins.
    """
    shifts: Floats = np.linspace(0.0, profile.period, angles, endpoint=False)
    longest = max([profile.period, *(other.period for host in hosts for other, _ in host)])
    samples = min(angles * iterations, 720)
    cost = np.zeros(angles)
    for host in hosts:
        if host:
            cost += excess(host, profile, shifts, capacity, iterations * longest, samples)
    return float(shifts[int(np.argmin(np.round(cost / capacity, 9)))])
