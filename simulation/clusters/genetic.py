"""The genetic algorithm that shares a cluster among jobs (Pollux, OSDI 2021, section 4.2).

An allocation has a row per job and a column per node: how many GPUs of the node the job has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedulers.compiled import Floats, Ints, compiled

Counts = NDArray[np.int8]


@compiled
def fitness(counts: Counts, held: Counts, speedups: Floats, kept: Floats) -> float:
    """Return the harmonic mean of the jobs' speedups (section 4.2, with p = -1).

    `speedups` has them within a node and over several, by number of GPUs, shape (jobs, 2, GPUs + 1). A job
    whose row differs from `held`, so that it restarts, counts with `kept` of its speedup. Each
    speedup has 0.001 added, so that the mean exists where a job has no GPUs.
    """
    jobs, nodes = counts.shape
    total = 0.0
    for j in range(jobs):
        gpus, used, moved = 0, 0, False
        for n in range(nodes):
            gpus += counts[j, n]
            used += counts[j, n] > 0
            moved |= counts[j, n] != held[j, n]
        speedup = speedups[j, 1 if used > 1 else 0, gpus]
        total += 1.0 / (speedup * (kept[j] if moved else 1.0) + 1e-3)
    mean: float = jobs / total
    return mean


@compiled
def repair(counts: Counts, least: Ints, most: Ints, free: Ints) -> None:
    """Make `counts` valid. A node has at most one job that is on other nodes, too (4.2: interference); no
    job has more GPUs than `most`, and no node gives more than `free`. Earlier jobs go first. A job with fewer
    than `least` gets none.
    """
    jobs, nodes = counts.shape
    taken = np.zeros(nodes, np.bool_)
    for j in range(jobs):
        used = 0
        for n in range(nodes):
            used += counts[j, n] > 0
        if used > 1:
            for n in range(nodes):
                if counts[j, n] > 0:
                    if taken[n]:
                        counts[j, n] = 0
                    taken[n] = True
    for j in range(jobs):
        over = -most[j]
        for n in range(nodes):
            over += counts[j, n]
        while over > 0:
            n = np.random.randint(nodes)
            less = min(over, counts[j, n])
            counts[j, n] -= less
            over -= less
    for n in range(nodes):
        left = free[n]
        for j in range(jobs):
            counts[j, n] = min(counts[j, n], left)
            left -= counts[j, n]
    for j in range(jobs):
        has = 0
        for n in range(nodes):
            has += counts[j, n]
        if has < least[j]:
            for n in range(nodes):
                counts[j, n] = 0


@compiled
def mutate(counts: Counts, held: Counts, free: Ints) -> None:
    """Change `counts` at random: some jobs get back what they hold, some lose GPUs, and where a node has GPUs
    left, some jobs get more of them, most of all those that are on it."""
    jobs, nodes = counts.shape
    left = np.empty(nodes, np.int64)
    for n in range(nodes):
        left[n] = free[n]
    for j in range(jobs):
        if np.random.random() < 0.1:
            for n in range(nodes):
                counts[j, n] = held[j, n]
        if np.random.random() < 0.1:
            for n in range(nodes):
                if np.random.random() < 0.1:
                    counts[j, n] = 0
        for n in range(nodes):
            left[n] -= counts[j, n]
    idle = 0
    for n in range(nodes):
        idle += left[n] > 0
    if idle == 0:
        return
    for j in range(jobs):
        own = 0
        for n in range(nodes):
            own += left[n] > 0 and counts[j, n] > 0
        for n in range(nodes):
            if left[n] <= 0:
                continue
            chance = 1.0 / idle
            if counts[j, n] > 0:
                chance += 1.0 / own - chance / own
            if np.random.random() < chance:
                counts[j, n] = np.random.randint(counts[j, n], free[n] + 1)


@compiled
def _winner(value: Floats, count: int) -> int:
    """Return the fitter of two among the first `count`."""
    a, b = np.random.randint(count), np.random.randint(count)
    return a if value[a] >= value[b] else b


@compiled
def _same(a: Counts, b: Counts) -> bool:
    for j in range(len(a)):
        for n in range(a.shape[1]):
            if a[j, n] != b[j, n]:
                return False
    return True


@compiled
def evolve(
    population: Counts,
    held: Counts,
    speedups: Floats,
    kept: Floats,
    least: Ints,
    most: Ints,
    free: Ints,
    size: int,
    generations: int,
    patience: int,
    seed: int,
) -> tuple[Counts, Floats]:
    """Return the fittest `size` allocations after some generations, the fittest first, and their fitness.

    It starts from `population`, shape (P, jobs, nodes), and ends early after `patience` generations without
    a fitter allocation. Parents win tournaments of two; a child has the first jobs of one and the others of
    the other, and is mutated and repaired.
    """
    np.random.seed(seed)
    jobs, nodes = held.shape
    every, fittest = np.empty((2 * size, jobs, nodes), np.int8), np.empty((size, jobs, nodes), np.int8)
    value, values = np.empty(2 * size), np.empty(size)
    count = min(len(population), size)
    for i in range(count):
        every[i] = population[i]
        value[i] = fitness(every[i], held, speedups, kept)
    best, still = -1.0, 0
    for _ in range(generations):
        for i in range(count, count + size):
            a, b = _winner(value, count), _winner(value, count)
            cut = np.random.randint(jobs)
            for j in range(jobs):
                parent = a if j < cut else b
                for n in range(nodes):
                    every[i, j, n] = every[parent, j, n]
            mutate(every[i], held, free)
            repair(every[i], least, most, free)
            value[i] = fitness(every[i], held, speedups, kept)
        order = np.argsort(-value[: count + size])
        count = 0
        for i in order:
            twin = False
            for k in range(count - 1, -1, -1):
                if values[k] != value[i]:
                    break
                twin = twin or _same(fittest[k], every[i])
            if not twin and count < size:
                fittest[count] = every[i]
                values[count] = value[i]
                count += 1
        every[:count] = fittest[:count]
        value[:count] = values[:count]
        still = still + 1 if values[0] <= best else 0
        best = max(best, values[0])
        if still >= patience:
            break
    return fittest[:count].copy(), values[:count].copy()
