"""The interface of cluster schedulers: which job gets which GPUs.

A scheduler may return several placements that it holds for equally good. The first is its own choice; Cassini
chooses the one in which jobs share links best (Cassini, 4.4.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from schedulers.placement.cluster import Cluster

CANDIDATES = 10
"""The most placements that a scheduler returns (4.5.1)."""

GPUs = tuple[int, ...]
Allocation = Mapping[str, GPUs]
"""The GPUs of each job that runs, by its name, ascending. Other jobs wait."""


@dataclass(frozen=True)
class Present:
    """A job that has arrived and not ended, as a scheduler sees it."""

    ident: str
    arrival_s: float
    work: float
    """All that it has to do, in any unit."""
    left: float
    """What of it is left."""
    speed: Callable[[GPUs], float]
    """Returns how much work per second it does on these GPUs if nobody slows it down. For a job that chooses
    its batch size, with the best one (Pollux' goodput)."""
    wanted: int
    """GPUs that it asks for."""
    least: int = 1
    """GPUs below which it cannot run."""
    most: int = 0
    """GPUs beyond which it cannot use more; 0: `wanted`."""
    held: GPUs = ()
    """GPUs on which it runs now."""
    restarts: int = 0
    """How often it was moved since it started."""

    @property
    def limit(self) -> int:
        """The most GPUs that it can use."""
        return self.most or self.wanted


class ClusterScheduler(Protocol):
    """Shares a cluster among jobs. It is asked when a job arrives or ends, and whenever it wants to be."""

    name: str
    dedicated: bool
    """Whether each job has a cluster of its own, so that GPUs may be given several times."""

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """Return 1 to `CANDIDATES` placements, the scheduler's own choice first. A job that has as many GPUs
        in one as in another runs as fast in both."""

    def again(self, now: float) -> float:
        """Return when it wants to be asked again even if no job arrives or ends, s; infinity: never."""


class Random:
    """First come, first served; a job gets GPUs at random and keeps them."""

    name = "random"
    dedicated = False

    def __init__(self, *, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """See ClusterScheduler."""
        found = {job.ident: job.held for job in jobs if job.held}
        free = [gpu for gpu in range(cluster.gpus) if not any(gpu in gpus for gpus in found.values())]
        for job in sorted(jobs, key=lambda job: job.arrival_s):
            if job.held:
                continue
            if job.wanted > len(free):
                break
            chosen = sorted(self._random.choice(free, job.wanted, replace=False).tolist())
            found[job.ident] = tuple(chosen)
            free = [gpu for gpu in free if gpu not in chosen]
        return [found]

    def again(self, now: float) -> float:
        """See ClusterScheduler."""
        return math.inf


class Ideal:
    """Each job gets the GPUs that it asks for, in a cluster of its own."""

    name = "ideal"
    dedicated = True

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """See ClusterScheduler."""
        return [{job.ident: job.held or tuple(range(job.wanted)) for job in jobs}]

    def again(self, now: float) -> float:
        """See ClusterScheduler."""
        return math.inf
