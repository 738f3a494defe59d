"""How well the jobs of one link fit together: their score and time shifts (Cassini, 4.3.4 to 4.3.7).

The score is 1 - mean excess of demand over the circle / capacity. It can be negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedulers.cassini.circle import ANGLES, samples, wrapped
from schedulers.cassini.kernels import mean_excess, refine, sampled, search, settle, unrolled, wheels_of
from schedulers.cassini.profile import Profile
from schedulers.compiled import Floats, Ints

BUDGET = 5_000_000
"""Elementary steps of a search over more than two free jobs; they take a few milliseconds."""
REFINING = 60_000
"""Up phases that the refinement of a search may look at."""
SLACK = 1e-9
"""Mean excesses, as fractions of the capacity, that differ by less count as equal."""


@dataclass(frozen=True)
class Fit:
    """The best shifts found for the jobs of a link: delays of an iteration's start (s), below one period."""

    score: float
    shifts: tuple[float, ...]


def arcs_of(profiles: Sequence[Profile], perimeter: float) -> tuple[Floats, Ints]:
    """Return the Up phases of all iterations on the circle (arcs, 3), and the job of each."""
    ups = [profile.ups for profile in profiles]
    periods = np.array([profile.period for profile in profiles])
    turns = np.rint(perimeter / periods).astype(np.int64)
    return unrolled(np.concatenate(ups), np.array([len(each) for each in ups]), periods, turns)


def score(profiles: Sequence[Profile], shifts: Sequence[float], perimeter: float, capacity: float) -> float:
    """Return the exact score of `profiles`, begun `shifts` (s) late, on a link of `capacity` (bytes/s).

    Every period divides `perimeter` (s).
    """
    arcs, owner = arcs_of(profiles, perimeter)
    return 1.0 - mean_excess(arcs, owner, np.array(shifts, dtype=float), perimeter, capacity) / capacity


def best(
    profiles: Sequence[Profile],
    perimeter: float,
    capacity: float,
    *,
    fixed: Mapping[int, float] | None = None,
    angles: int = ANGLES,
    budget: int = BUDGET,
    seed: int = 0,
) -> Fit:
    """Return the best shifts of jobs on a link of `capacity` (bytes/s), whose periods divide `perimeter` (s).

    `fixed` holds the shifts (s) of jobs that must not move; by default the slowest job has shift 0. The
    search samples the circle `angles` times per iteration of the fastest job and is exact there for two free
    jobs or fewer. The result is then refined to the edges of phases.
    """
    periods = np.array([profile.period for profile in profiles])
    held = {int(periods.argmax()): 0.0} if fixed is None else dict(fixed)
    shifts = np.array([held.get(j, 0.0) % periods[j] for j in range(len(profiles))])
    # Jobs that send most are inserted first.
    free = np.array(
        sorted(
            (j for j in range(len(profiles)) if j not in held), key=lambda j: -profiles[j].bytes / periods[j]
        ),
        dtype=np.int64,
    )
    arcs, owner = arcs_of(profiles, perimeter)
    if free.size:
        count = samples(perimeter, periods, angles)
        step = perimeter / count
        circles = sampled(arcs, owner, shifts, perimeter, count) / capacity
        base = circles[list(held)].sum(axis=0) - 1.0
        reach = np.array([math.ceil(periods[j] / step * (1.0 - 1e-9)) for j in free], dtype=np.int64)
        rotations, _ = search(base, wheels_of(circles[free]), reach, SLACK * count, budget, seed)
        shifts[free] = rotations * step % periods[free]
        refine(arcs, owner, shifts, free, periods, perimeter, capacity, step, SLACK * capacity, REFINING)
    excess = mean_excess(arcs, owner, shifts, perimeter, capacity)
    return Fit(1.0 - excess / capacity, tuple(map(wrapped, shifts.tolist(), periods.tolist())))


def jointly(
    profiles: Sequence[Profile],
    links: Sequence[tuple[float, Sequence[int]]],
    perimeter: float,
    shifts: Sequence[float],
    floor: float,
    *,
    budget: int = BUDGET,
    seed: int = 0,
) -> tuple[float, ...]:
    """Return shifts (s) of jobs that cross several links, each a capacity (bytes/s) and its jobs, beginning
    with `shifts`, of which the first stays.

    The sum over links of 1 - score gets as small as the search finds it in its budget, but no smaller than
    `floor`. Shifts other than the first are multiples of the sampling step.
    """
    periods = np.array([profile.period for profile in profiles])
    count = samples(perimeter, periods, ANGLES)
    step = perimeter / count
    begin = np.zeros(len(profiles))
    begin[0] = shifts[0]
    circles = sampled(*arcs_of(profiles, perimeter), begin, perimeter, count)
    carries = np.zeros((len(links), len(profiles)))
    for n, (capacity, jobs) in enumerate(links):
        carries[n, list(jobs)] = 1.0 / capacity
    reach = np.ceil(periods / step * (1.0 - 1e-9)).astype(np.int64)
    rotations = np.rint(np.array(shifts) / step).astype(np.int64) % reach
    rotations[0] = 0
    found = settle(wheels_of(circles), carries, reach, rotations, floor * count, SLACK * count, budget, seed)
    result = found * step
    result[0] = shifts[0]
    return tuple(map(wrapped, result.tolist(), periods.tolist()))


def curve(
    profiles: Sequence[Profile], shifts: Sequence[float], perimeter: float
) -> list[tuple[float, float]]:
    """Return the sum of demands around the circle as steps: pairs of a time (s) and the demand from then on
    (bytes/s). The first time is 0; times are whole nanoseconds."""
    arcs, owner = arcs_of(profiles, perimeter)
    whole = round(perimeter * 1e9)
    starts = np.rint((arcs[:, 0] + np.array(shifts)[owner]) * 1e9).astype(np.int64)
    ends = np.rint((arcs[:, 1] + np.array(shifts)[owner]) * 1e9).astype(np.int64)
    times = np.unique(np.concatenate(([0], starts % whole, ends % whole)))
    # An arc covers a time if the time is within its length behind the start.
    covered = (times[:, None] - starts) % whole < ends - starts
    levels = covered @ arcs[:, 2]
    changes = np.flatnonzero(np.diff(levels, prepend=np.nan))
    return [(float(times[i]) / 1e9, float(levels[i])) for i in changes]
