"""Pollux: GPUs go to jobs so that their goodput grows most, and fairly (Pollux, OSDI 2021, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from schedulers.compiled import Floats, Ints
from schedulers.placement.cluster import Cluster
from simulation.clusters.genetic import Counts, evolve
from simulation.clusters.scheduler import CANDIDATES, Allocation, GPUs, Present

INTERVAL_S = 60.0
"""Between two decisions (section 5.1)."""
RESTART_S = 30.0
"""How long a job stands still when its GPUs change (section 5.1)."""
POPULATION, GENERATIONS = 100, 100
PATIENCE = 25
"""Generations without a fitter allocation after which the search ends."""
NEARLY = 0.99
"""Allocations with this part of the best fitness are candidates, too, if jobs have as many GPUs in them."""


class Pollux:
    """Shares a cluster by a genetic algorithm, whose population it keeps from one decision to the next."""

    name = "pollux"
    dedicated = False

    def __init__(self, *, seed: int = 0, interval: float = INTERVAL_S) -> None:
        """It decides every `interval` s."""
        self.interval = interval
        self._random = np.random.default_rng(seed)
        self._population: Counts | None = None
        self._names: list[str] = []
        self._service: dict[str, float] = {}
        self._asked = 0.0

    def again(self, now: float) -> float:
        """See ClusterScheduler."""
        return (math.floor(now / self.interval + 1e-9) + 1.0) * self.interval

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """See ClusterScheduler."""
        for job in jobs:
            served = len(job.held) * (now - self._asked)
            self._service[job.ident] = self._service.get(job.ident, 0.0) + served
        self._asked = now
        if not jobs:
            return [{}]
        jobs = sorted(jobs, key=lambda job: (self._service[job.ident], job.arrival_s, job.ident))
        nodes, per_node = cluster.gpus // cluster.gpus_per_server, cluster.gpus_per_server
        held = np.array([_counts(job.held, nodes, per_node) for job in jobs], np.int8)
        age = np.array([now - job.arrival_s for job in jobs])
        restarts = np.array([job.restarts for job in jobs])
        population, value = evolve(
            self._known(jobs, held),
            held,
            _speedups(jobs, nodes, per_node),
            np.maximum(age - RESTART_S * restarts, 0.0) / (age + RESTART_S),
            np.array([job.least for job in jobs]),
            np.array([job.limit for job in jobs]),
            np.full(nodes, per_node),
            POPULATION,
            GENERATIONS,
            PATIENCE,
            int(self._random.integers(2**31)),
        )
        self._population, self._names = population, [job.ident for job in jobs]
        best, numbers = population[0], population.sum(axis=2)
        near = (value >= NEARLY * value[0]) & (numbers == numbers[0]).all(axis=1)
        alike = [best, *(self._elsewhere(best, held) for _ in range(CANDIDATES)), *population[near]]
        distinct = {counts.tobytes(): counts for counts in alike}
        return [_allocation(jobs, counts, per_node) for counts in list(distinct.values())[:CANDIDATES]]

    def _known(self, jobs: Sequence[Present], held: Counts) -> Counts:
        """Return what is held and the last population, with rows for the present jobs."""
        if self._population is None:
            return held[None]
        before = {name: row for row, name in enumerate(self._names)}
        known = np.zeros((len(self._population) + 1, *held.shape), np.int8)
        known[0] = held
        for row, job in enumerate(jobs):
            if job.ident in before:
                known[1:, row] = self._population[:, before[job.ident]]
        return known

    def _elsewhere(self, counts: Counts, held: Counts) -> Counts:
        """Return `counts` with other nodes for the jobs that are to move anyway."""
        moving = (counts != held).any(axis=1)
        open_ = np.flatnonzero(~counts[~moving].any(axis=0))
        found = counts.copy()
        found[np.ix_(moving, open_)] = counts[np.ix_(moving, self._random.permutation(open_))]
        return found


def _counts(gpus: GPUs, nodes: int, per_node: int) -> Ints:
    return np.bincount(np.array(gpus, np.int64) // per_node, minlength=nodes)


def _speedups(jobs: Sequence[Present], nodes: int, per_node: int) -> Floats:
    """Return each job's speedup over its fair share of the GPUs, within a node and over several, by number of
    GPUs, shape (jobs, 2, GPUs + 1). A fair share on one node counts 1."""
    gpus = nodes * per_node
    fair = packed(math.ceil(gpus / len(jobs)), 1, nodes, per_node)
    found = np.zeros((len(jobs), 2, gpus + 1))
    for row, job in enumerate(jobs):
        for count in range(1, min(job.limit, gpus) + 1):
            if count <= per_node:
                found[row, 0, count] = job.speed(packed(count, 1, nodes, per_node))
            if count > 1 and nodes > 1:
                found[row, 1, count] = job.speed(packed(count, 2, nodes, per_node))
        found[row, 1, 1] = found[row, 0, 1]
        base = job.speed(fair) or found[row].max()
        if base > 0.0:
            found[row] /= base
    return found / per_node


def packed(count: int, least: int, nodes: int, per_node: int) -> GPUs:
    """Return `count` GPUs on as few nodes as hold them, at least `least`."""
    used = min(max(least, math.ceil(count / per_node)), nodes)
    share = [count // used + (n < count % used) for n in range(used)]
    return tuple(n * per_node + g for n in range(used) for g in range(share[n]))


def _allocation(jobs: Sequence[Present], counts: Counts, per_node: int) -> Allocation:
    """Return the GPUs of each job. One whose counts stay the same keeps those that it holds."""
    found: dict[str, GPUs] = {}
    held = [_counts(job.held, counts.shape[1], per_node) for job in jobs]
    for job, row, was in zip(jobs, counts, held, strict=True):
        if job.held and (row == was).all():
            found[job.ident] = job.held
    taken = {gpu for gpus in found.values() for gpu in gpus}
    for job, row in zip(jobs, counts, strict=True):
        if job.ident in found or not row.any():
            continue
        gpus = [
            gpu
            for n in np.flatnonzero(row).tolist()
            for gpu in [g for g in range(n * per_node, (n + 1) * per_node) if g not in taken][: row[n]]
        ]
        taken.update(gpus)
        found[job.ident] = tuple(gpus)
    return found
