"""Themis: finish-time fairness by auctions of leased GPUs (Mahajan et al., NSDI 2020), as Cassini uses it
(4.4.2, 4.5.1).

A job's finish-time fairness ρ is the time from its arrival to its end over what it would take with its part
of the cluster for itself. GPUs are held for a lease. When some are free or their lease is over, the jobs with
the largest ρ bid for them, and those win for which the product of 1 / ρ over all bidders grows most. What
they leave goes to the other jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from schedulers.placement.cluster import Cluster
from simulation.clusters.scheduler import CANDIDATES, Allocation, GPUs, Present

LEASE_S = 600.0
"""How long GPUs are held: the bidding period of 10 minutes (4.5.1)."""
FAIRNESS = 0.8
"""Themis' knob f: the part 1 - f of the jobs, those with the largest ρ, bid first."""
SPREAD = 1.1
"""How much slower a job is taken to be across racks."""
RESTART_S = 10.0
"""How long a job stands still when its GPUs change."""
TRIES = 64
"""Placements that are drawn in search of candidates."""


def speed(job: Present, gpus: GPUs, cluster: Cluster) -> float:
    """Return how fast Themis thinks that the job is on these GPUs: in proportion to their number, and slower
    by `SPREAD` across racks (4.4.2)."""
    apart = len({gpu // cluster.gpus_per_leaf for gpu in gpus}) > 1
    each = job.speed(tuple(range(job.wanted))) / job.wanted
    return each * len(gpus) / (SPREAD if apart else 1.0)


def rho(job: Present, count: int, now: float, jobs: int, cluster: Cluster) -> float:
    """Return the job's finish-time fairness if it gets `count` GPUs in all and keeps them; infinity if it
    cannot run. `jobs` are those that share the cluster."""
    if count < max(job.least, 1):
        return math.inf
    part = min(max(cluster.gpus // max(jobs, 1), job.least, 1), job.limit)
    alone = job.work / speed(job, tuple(range(part)), cluster)
    moves = RESTART_S if job.held and count != len(job.held) else 0.0
    count = min(count, job.limit)
    shared = now - job.arrival_s + moves + job.left / speed(job, tuple(range(count)), cluster)
    return shared / alone


class Themis:
    """The arbiter. It keeps the leases of what jobs hold."""

    name = "themis"
    dedicated = False

    def __init__(self, *, seed: int = 0, lease_s: float = LEASE_S) -> None:
        self._random = np.random.default_rng(seed)
        self._lease_s = lease_s
        self._leases: dict[str, tuple[GPUs, float]] = {}

    def candidates(self, now: float, jobs: Sequence[Present], cluster: Cluster) -> Sequence[Allocation]:
        """See ClusterScheduler."""
        self._renew(now, jobs)
        kept = {job.ident: job.held for job in jobs if job.held and now < self._leases[job.ident][1]}
        taken = {gpu for gpus in kept.values() for gpu in gpus}
        pool = [gpu for gpu in range(cluster.gpus) if gpu not in taken]
        counts = auction(now, jobs, kept, len(pool), cluster)
        for job in jobs:
            if job.held and job.ident not in kept:  # a lease that is over begins again
                self._leases[job.ident] = job.held, now + self._lease_s
        return _placements(jobs, kept, counts, pool, cluster, self._random)

    def again(self, now: float) -> float:
        """See ClusterScheduler."""
        return min((until for _, until in self._leases.values()), default=math.inf)

    def _renew(self, now: float, jobs: Sequence[Present]) -> None:
        """Note what jobs got since the last auction."""
        held = {job.ident: job.held for job in jobs if job.held}
        self._leases = {
            ident: self._leases[ident]
            if ident in self._leases and self._leases[ident][0] == gpus
            else (gpus, now + self._lease_s)
            for ident, gpus in held.items()
        }


def auction(
    now: float, jobs: Sequence[Present], kept: Mapping[str, GPUs], pool: int, cluster: Cluster
) -> dict[str, int]:
    """Return how many of the `pool` GPUs each job wins, on top of those that it keeps."""
    won = dict.fromkeys((job.ident for job in jobs), 0)

    def total(job: Present) -> int:
        return len(kept.get(job.ident, ())) + won[job.ident]

    def fairness(job: Present) -> float:
        return rho(job, total(job), now, len(jobs), cluster)

    order = sorted(jobs, key=lambda job: (-fairness(job), job.arrival_s, job.ident))
    bidders = math.ceil((1.0 - FAIRNESS) * len(order) - 1e-9)
    for part in (order[:bidders], order):
        pool -= _nash(part, pool, total, won, now, len(jobs), cluster)
    return won


def _nash(
    bidders: Sequence[Present],
    pool: int,
    total: Callable[[Present], int],
    won: dict[str, int],
    now: float,
    jobs: int,
    cluster: Cluster,
) -> int:
    """Give GPUs one by one where the product of the bidders' 1 / ρ grows most; return how many were given."""
    given = 0
    while True:
        best: tuple[float, Present | None, int] = (0.0, None, 0)
        for job in bidders:
            have = total(job)
            step = job.least if have < job.least else 1
            # More than one at a time where a single one does not pay for the restart.
            for more in range(step, min(pool - given, job.limit - have) + 1):
                before = rho(job, have, now, jobs, cluster)
                after = rho(job, have + more, now, jobs, cluster)
                gain = math.inf if math.isinf(before) else math.log(before / after) / more
                if gain > best[0] + 1e-12:
                    best = gain, job, more
                if math.isinf(before):
                    break
        if best[1] is None:
            return given
        won[best[1].ident] += best[2]
        given += best[2]


def _placements(
    jobs: Sequence[Present],
    kept: Mapping[str, GPUs],
    counts: Mapping[str, int],
    pool: Sequence[int],
    cluster: Cluster,
    random: np.random.Generator,
) -> list[Allocation]:
    """Return placements of the winners on the pool that are as good as the first for every job: the same
    number of GPUs, in one rack or not. The finish-time fairness of Themis knows no other difference."""
    winners = [job for job in jobs if counts[job.ident] > 0]
    first = _place(winners, kept, counts, pool, cluster, random)
    found: list[Allocation] = [first]
    for _ in range(TRIES):
        if len(found) == CANDIDATES or not winners:
            break
        order = [winners[n] for n in random.permutation(len(winners))]
        other = _place(order, kept, counts, pool, cluster, random)
        same = all(
            speed(job, other[job.ident], cluster) >= speed(job, first[job.ident], cluster) * (1.0 - 1e-9)
            for job in winners
        )
        if same and other not in found:
            found.append(other)
    return found


def _place(
    winners: Sequence[Present],
    kept: Mapping[str, GPUs],
    counts: Mapping[str, int],
    pool: Sequence[int],
    cluster: Cluster,
    random: np.random.Generator,
) -> dict[str, GPUs]:
    """Give each winner its GPUs: those that it has had, as far as they are in the pool; otherwise all in a
    rack that has enough, or any."""
    free = set(pool)
    result = dict(kept)
    for job in winners:
        own = kept.get(job.ident, ())
        again = sorted(set(job.held) & free)[: counts[job.ident]]
        free -= set(again)
        need = counts[job.ident] - len(again)
        if need:
            homes = {gpu // cluster.gpus_per_leaf for gpu in (*own, *again)}
            racks = [leaf for leaf in range(cluster.leaves) if homes <= {leaf}]
            rooms = [[gpu for gpu in sorted(free) if gpu // cluster.gpus_per_leaf == leaf] for leaf in racks]
            fitting = [room for room in rooms if len(room) >= need]
            room = fitting[int(random.integers(len(fitting)))] if fitting else sorted(free)
            again += random.choice(room, need, replace=False).tolist()
            free -= set(again)
        result[job.ident] = tuple(sorted((*own, *again)))
    return result
