"""Compiled kernels: the search for rotations on a sampled circle, and the exact excess of shifted phases.

A wheel is a job's samples (S,) backwards and twice, shape (2 S,): rotated by s, its sample i is
wheel[S - i + s]. A cost is the sum of demand above the capacity over all samples.
"""

from __future__ import annotations

import math

import numpy as np

from schedulers.compiled import Floats, Ints, compiled


@compiled
def unrolled(ups: Floats, counts: Ints, periods: Floats, turns: Ints) -> tuple[Floats, Ints]:
    """Return the Up phases of all iterations on the circle (arcs, 3), as start, end (s) and rate, and the job
    of each (arcs,).

    `ups` holds those of the first iterations, `counts` (jobs,) of each, one job after the other; a job has
    `turns` (jobs,) iterations of `periods` (jobs,) s.
    """
    arcs = np.empty(((counts * turns).sum(), 3))
    owner = np.empty(len(arcs), np.int64)
    at, first = 0, 0
    for j in range(len(counts)):
        for turn in range(turns[j]):
            for n in range(first, first + counts[j]):
                arcs[at, 0] = ups[n, 0] + turn * periods[j]
                arcs[at, 1] = ups[n, 1] + turn * periods[j]
                arcs[at, 2] = ups[n, 2]
                owner[at] = j
                at += 1
        first += counts[j]
    return arcs, owner


@compiled
def sampled(arcs: Floats, owner: Ints, shifts: Floats, perimeter: float, count: int) -> Floats:
    """Return the demand of each job (jobs, count) at the middle of each of `count` equal parts of the circle.

    `arcs` and `owner` are those of `unrolled`, `shifts` (jobs,) the jobs' delays (s).
    """
    result = np.zeros((len(shifts), count))
    step = perimeter / count
    for n in range(len(owner)):
        j = owner[n]
        # A sample on an edge, but for rounding, belongs to what follows.
        first = math.ceil((arcs[n, 0] + shifts[j]) / step - 0.5 - 1e-6)
        last = math.ceil((arcs[n, 1] + shifts[j]) / step - 0.5 - 1e-6)
        for i in range(first, last):
            result[j, i % count] = arcs[n, 2]
    return result


@compiled
def wheels_of(circles: Floats) -> Floats:
    """Return the wheels (jobs, 2 S) of `circles` (jobs, S)."""
    jobs, size = circles.shape
    result = np.empty((jobs, 2 * size))
    for j in range(jobs):
        for k in range(2 * size):
            result[j, k] = circles[j, (2 * size - k) % size]
    return result


@compiled
def _add_costs(base: Floats, wheel: Floats, factor: float, reach: int, cost: Floats) -> None:
    """Add to `cost` what each rotation in range(reach) of `factor` times the wheel costs on top of `base`
    (S,), the demand of the other jobs less the capacity."""
    size = len(base)
    peak = factor * wheel.max()
    for i in range(size):
        low = base[i]
        if low + peak <= 0.0:
            continue
        turned = wheel[size - i : size - i + reach]
        for s in range(reach):
            cost[s] += max(low + factor * turned[s], 0.0)


@compiled
def _costs(base: Floats, wheel: Floats, reach: int, cost: Floats) -> None:
    """Write to `cost` what each rotation in range(reach) costs on top of `base` (S,)."""
    cost[:reach] = 0.0
    _add_costs(base, wheel, 1.0, reach, cost)


@compiled
def _add(base: Floats, wheel: Floats, rotation: int, factor: float) -> None:
    turned = wheel[rotation + 1 : rotation + 1 + len(base)][::-1]
    for i in range(len(base)):
        base[i] += factor * turned[i]


@compiled
def _add_all(base: Floats, wheels: Floats, rotations: Ints, level: Floats) -> None:
    """Write to `level` the sum of `base` and all jobs."""
    level[:] = base
    for j in range(len(rotations)):
        _add(level, wheels[j], rotations[j], 1.0)


@compiled
def _over(base: Floats) -> float:
    total = 0.0
    for low in base:
        total += max(low, 0.0)
    return total


@compiled
def _cheapest(cost: Floats, reach: int, slack: float) -> int:
    """Return the first rotation that costs at most `slack` more than the best."""
    least = cost[:reach].min() + slack
    for s in range(reach):
        if cost[s] <= least:
            return s
    return 0


@compiled
def _both(base: Floats, wheels: Floats, reach: Ints, known: float, floor: float, slack: float) -> Ints:
    """Return the best rotations of two jobs on top of `base`. Some rotations cost no more than `known`, and
    none costs less than `floor`. Rotations of the first job that cost more by themselves are left out."""
    best = known + 2.0 * slack
    found = np.zeros(2, np.int64)
    row = np.empty(len(base))
    cost = np.empty(reach[1])
    for s in range(reach[0]):
        row[:] = base
        _add(row, wheels[0], s, 1.0)
        if _over(row) >= best - slack:
            continue
        _costs(row, wheels[1], reach[1], cost)
        t = _cheapest(cost, reach[1], slack)
        if cost[t] < best - slack:
            best = cost[t]
            found[0], found[1] = s, t
            if best <= floor + slack:
                break
    return found


@compiled
def _descend(
    base: Floats, wheels: Floats, reach: Ints, rotations: Ints, slack: float, cost: Floats
) -> tuple[float, int]:
    """Turn one job at a time to its best rotation until none gets better. `base` includes all jobs and still
    does at the end. Return the cost and the number of elementary steps."""
    jobs = len(reach)
    now = _over(base)
    spent, still = 0, 0
    while still < jobs:
        for j in range(jobs):
            _add(base, wheels[j], rotations[j], -1.0)
            _costs(base, wheels[j], reach[j], cost)
            spent += len(base) * reach[j]
            s = _cheapest(cost, reach[j], slack)
            still += 1
            if cost[s] < now - slack:
                now, still = cost[s], 1
                rotations[j] = s
            _add(base, wheels[j], rotations[j], 1.0)
            if still >= jobs:
                break
    return now, spent


@compiled
def search(
    base: Floats, wheels: Floats, reach: Ints, slack: float, budget: int, seed: int
) -> tuple[Ints, float]:
    """Return rotations (jobs,) of the free jobs on top of `base` (S,), and their cost.

    `base` is the fixed jobs' demand less the capacity, `reach` (jobs,) how far each job turns. One and two
    jobs get an optimal rotation. For more, descents from several starts take about `budget` steps. Costs that
    differ by less than `slack` count as equal; the first one wins.
    """
    jobs = len(reach)
    best = np.zeros(jobs, np.int64)
    if jobs == 0:
        return best, _over(base)
    cost = np.empty(max(reach.max(), 1))
    floor = max(base.sum() + wheels.sum() / 2.0, 0.0)
    # Insert one job after the other.
    level = base.copy()
    for j in range(jobs):
        _costs(level, wheels[j], reach[j], cost)
        best[j] = _cheapest(cost, reach[j], slack)
        _add(level, wheels[j], best[j], 1.0)
    if jobs == 1:
        return best, cost[best[0]]
    least, spent = _descend(level, wheels, reach, best, slack, cost)
    if jobs == 2:
        best = _both(base, wheels, reach, least, floor, slack)
        _add_all(base, wheels, best, level)
        return best, _over(level)
    np.random.seed(seed)
    start = 0
    rotations = np.zeros(jobs, np.int64)
    while spent < budget and least > floor + slack:
        # Turn some jobs of the best rotations found at random, or all.
        rotations[:] = best
        keep = 0.0 if start % 3 == 2 else 1.0 - 2.0 / jobs
        for j in range(jobs):
            if np.random.random() >= keep:
                rotations[j] = np.random.randint(0, reach[j])
        _add_all(base, wheels, rotations, level)
        now, steps = _descend(level, wheels, reach, rotations, slack, cost)
        spent += steps
        if now < least - slack:
            least = now
            best[:] = rotations
        start += 1
    return best, least


@compiled
def _settled(
    loads: Floats, wheels: Floats, carries: Floats, reach: Ints, rotations: Ints, slack: float
) -> tuple[float, int]:
    """`_descend` over several links at once: `carries` (links, jobs) has the factor by which a job's wheel
    counts on a link, and 0 where it does not cross it. The first job stays."""
    links, jobs = carries.shape
    cost = np.empty(reach.max())
    now = 0.0
    for k in range(links):
        now += _over(loads[k])
    spent, still = 0, 1
    while still < jobs:
        for j in range(1, jobs):
            cost[: reach[j]] = 0.0
            others = 0.0
            for k in range(links):
                if carries[k, j] == 0.0:
                    others += _over(loads[k])
                    continue
                _add(loads[k], wheels[j], rotations[j], -carries[k, j])
                _add_costs(loads[k], wheels[j], carries[k, j], reach[j], cost)
                spent += loads.shape[1] * reach[j]
            s = _cheapest(cost, reach[j], slack)
            still += 1
            if cost[s] + others < now - slack:
                now, still = cost[s] + others, 2
                rotations[j] = s
            for k in range(links):
                if carries[k, j] != 0.0:
                    _add(loads[k], wheels[j], rotations[j], carries[k, j])
            if still >= jobs:
                break
    return now, spent


@compiled
def settle(
    wheels: Floats,
    carries: Floats,
    reach: Ints,
    rotations: Ints,
    floor: float,
    slack: float,
    budget: int,
    seed: int,
) -> Ints:
    """Return rotations (jobs,) for which the costs of several links have a small sum; the first job stays.

    `carries` (links, jobs) has 1 / capacity where a link carries a job, else 0. The search begins with
    `rotations`, ends when the sum is at most `floor`, and otherwise takes about `budget` steps.
    """
    links, jobs = carries.shape
    size = wheels.shape[1] // 2
    np.random.seed(seed)
    best = rotations.copy()
    least = np.inf
    spent, start = 0, 0
    loads = np.empty((links, size))
    while start == 0 or (spent < budget and least > floor + slack):
        tried = best.copy()
        if start > 0:
            keep = 0.0 if start % 3 == 0 else 1.0 - 2.0 / jobs
            for j in range(1, jobs):
                if np.random.random() >= keep:
                    tried[j] = np.random.randint(0, reach[j])
        loads[:] = -1.0
        for k in range(links):
            for j in range(jobs):
                if carries[k, j] != 0.0:
                    _add(loads[k], wheels[j], tried[j], carries[k, j])
        now, steps = _settled(loads, wheels, carries, reach, tried, slack)
        spent += steps
        if now < least - slack:
            least = now
            best[:] = tried
        start += 1
    return best


@compiled
def mean_excess(arcs: Floats, owner: Ints, shifts: Floats, perimeter: float, capacity: float) -> float:
    """Return the exact mean of demand above `capacity` around the circle. The rest is as in `sampled`."""
    count = len(owner)
    times = np.empty(2 * count)
    changes = np.empty(2 * count)
    level = 0.0
    for n in range(count):
        start = (arcs[n, 0] + shifts[owner[n]]) % perimeter
        end = start + arcs[n, 1] - arcs[n, 0]
        if end > perimeter:
            end -= perimeter
            level += arcs[n, 2]
        times[2 * n], changes[2 * n] = start, arcs[n, 2]
        times[2 * n + 1], changes[2 * n + 1] = end, -arcs[n, 2]
    order = np.argsort(times)
    now, total = 0.0, 0.0
    for k in order:
        total += (times[k] - now) * max(level - capacity, 0.0)
        now = times[k]
        level += changes[k]
    total += (perimeter - now) * max(level - capacity, 0.0)
    return total / perimeter


@compiled
def refine(
    arcs: Floats,
    owner: Ints,
    shifts: Floats,
    free: Ints,
    periods: Floats,
    perimeter: float,
    capacity: float,
    step: float,
    slack: float,
    budget: int,
) -> float:
    """Move the shifts of the `free` jobs by less than `step` (s) where that lowers the exact mean excess;
    return it.

    At a best shift an edge of one job's phase meets an edge of another's, so these shifts are tried, as many
    as `budget` allows if each takes one step per Up phase.
    """
    now = mean_excess(arcs, owner, shifts, perimeter, capacity)
    moved = True
    while moved and now > slack and budget > 0:
        moved = False
        for j in free:
            origin = shifts[j]
            best = origin
            for m in range(len(owner)):
                # The edges of the other iterations are as far away.
                if owner[m] != j or arcs[m, 0] >= periods[j]:
                    continue
                for n in range(len(owner)):
                    if owner[n] == j:
                        continue
                    for side in range(4):
                        other = arcs[n, side % 2] + shifts[owner[n]]
                        gap = (other - arcs[m, side // 2] - origin) % periods[j]
                        if gap > periods[j] / 2.0:
                            gap -= periods[j]
                        if abs(gap) >= step or gap == 0.0 or budget <= 0:
                            continue
                        budget -= len(owner)
                        shifts[j] = (origin + gap) % periods[j]
                        tried = mean_excess(arcs, owner, shifts, perimeter, capacity)
                        if tried < now - slack:
                            now, best, moved = tried, shifts[j], True
            shifts[j] = best
    return now
