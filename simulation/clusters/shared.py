"""Training jobs in a shared cluster: a scheduler places them, and they iterate over the network.

With Cassini, its module chooses among the scheduler's placements and shifts jobs in time (Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schedulers.cassini.affinity import Link
from schedulers.cassini.module import choose
from schedulers.cassini.pace import REST
from schedulers.cassini.plan import BOUND, Plan, plan
from schedulers.cassini.profile import Profile
from schedulers.compiled import Floats, Ints
from schedulers.placement.cluster import Cluster
from simulation.clusters import training
from simulation.clusters.arrivals import ModelJob
from simulation.clusters.network import Traffic, traffic
from simulation.clusters.scheduler import Allocation, ClusterScheduler, GPUs, Present
from simulation.clusters.themis import RESTART_S
from simulation.results import Placed
from simulation.topology import Topology

JITTER = 0.01
"""Standard deviation of computation times over their mean."""
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Outcome:
    """What happened: `records` (training.RECORD) of all iterations; per job its end (s), how often it was
    moved, and how often the others waited for it. `scores` has Cassini's score of each placement chosen, and
    `placed` how many jobs shared links in it."""

    records: training.State
    finish: Floats
    restarts: Ints
    adjusted: Ints
    scores: tuple[float, ...]
    placed: Placed


class SharedCluster:
    """Jobs, a scheduler and a network, from the first arrival to the last end."""

    def __init__(
        self,
        jobs: Sequence[ModelJob],
        scheduler: ClusterScheduler,
        cluster: Cluster,
        network: Topology,
        *,
        cassini: bool = False,
        jitter: float = JITTER,
        seed: int = 0,
    ) -> None:
        self.jobs = jobs
        self.scheduler = scheduler
        self.cluster = cluster
        self.network = network
        self._cassini = cassini
        self._jitter = jitter
        self._seed = seed
        self._now = 0.0
        self._state = np.zeros(len(jobs), training.JOB)
        self._left = np.array([job.work for job in jobs])
        self._held: dict[int, GPUs] = {}
        self._paced: dict[int, GPUs] = {}  # the placement for which jobs got their paces
        self._traffic: dict[int, Traffic] = {}
        self._restarts = np.zeros(len(jobs), np.int64)
        self._finish = np.full(len(jobs), math.nan)
        self._records: list[training.State] = []
        self._scores: list[float] = []
        self._placed = Placed(0, 0, 0, 0)
        self._phases = np.zeros((len(jobs), 2 * max(len(job.model.bursts) for job in jobs) + 1, 2))
        self._number = {job.ident: n for n, job in enumerate(jobs)}
        self._profiles: dict[int, Profile] = {}

    def run(self) -> Outcome:
        """Run until all jobs have ended."""
        training.seeded(self._seed)
        order = sorted(range(len(self.jobs)), key=lambda n: self.jobs[n].arrival_s)
        waiting = order[::-1]
        present: list[int] = []
        while waiting or present:
            arrival = self.jobs[waiting[-1]].arrival_s if waiting else math.inf
            self._advance(min(arrival, self.scheduler.again(self._now)))
            for n in [n for n in present if self._left[n] <= 0.0]:
                present.remove(n)
                self._finish[n] = self._now
                self._held.pop(n), self._traffic.pop(n)
            while waiting and self.jobs[waiting[-1]].arrival_s <= self._now:
                present.append(waiting.pop())
            if present:
                self._place(present)
        records = np.concatenate(self._records) if self._records else np.zeros(0, training.RECORD)
        return Outcome(
            records,
            self._finish,
            self._restarts,
            self._state["adjusted"].copy(),
            tuple(self._scores),
            self._placed,
        )

    # -- running

    def _advance(self, until: float) -> None:
        """Let jobs run until a time, or until one ends."""
        active = np.array(sorted(self._held), np.int64)
        if not len(active):
            self._now = max(self._now, until)
            return
        if not math.isfinite(until):
            until = 1e18
        weight, flows, capacity = self._contended(active)
        burst, steady = training.marking(float(self.network.capacity.max()))
        before = self._state["iterations"].copy()
        while True:
            records = np.zeros(CHUNK, training.RECORD)
            self._now, count = training.advance(
                self._state, active, self._phases, weight, flows, capacity, burst, steady,
                self._jitter, self._now, until, records, 0,
            )  # fmt: skip
            self._records.append(records[:count].copy())
            if self._now >= until or (self._state["iterations"][active] <= 0).any():
                break
        for n in active.tolist():
            done = int(before[n] - self._state["iterations"][n])
            self._left[n] -= done * len(self._held[n])
            if self._state["iterations"][n] <= 0:
                self._left[n] = 0.0

    def _contended(self, active: Ints) -> tuple[Floats, Floats, Floats]:
        """Weights and flows (active, links) on links that can be what holds flows back, and their
        capacity."""
        weight = np.stack([self._traffic[n].weight for n in active.tolist()])
        flows = np.stack([self._traffic[n].flows for n in active.tolist()])
        if self.scheduler.dedicated:
            weight, flows = weight[:, :0], flows[:, :0]
            return weight, flows, np.zeros(0)
        peaks = np.array([self._profiles[n].peak for n in active.tolist()])
        tight = peaks @ weight > self.network.capacity * (1.0 + 1e-9)
        return (
            np.ascontiguousarray(weight[:, tight]),
            np.ascontiguousarray(flows[:, tight]),
            self.network.capacity[tight],
        )

    # -- placing

    def _place(self, present: Sequence[int]) -> None:
        views = [self._view(n) for n in present]
        candidates = self.scheduler.candidates(self._now, views, self.cluster)
        allocation = candidates[self._choose(candidates) if self._cassini else 0]
        chosen = {self._number[ident]: gpus for ident, gpus in allocation.items()}
        for n in present:
            gpus = chosen.get(n, ())
            if gpus != self._held.get(n, ()):
                self._move(n, gpus)
        if self._held != self._paced:
            links = [] if self.scheduler.dedicated else self._links(allocation)
            paces = self._pace(allocation, links) if self._cassini else None
            self._count(allocation, links, paces)
            self._paced = dict(self._held)

    def _view(self, n: int) -> Present:
        job = self.jobs[n]

        def speed(gpus: GPUs) -> float:
            return len(gpus) / job.profile(len(gpus)).period

        return Present(
            job.ident,
            job.arrival_s,
            job.work,
            float(self._left[n]),
            speed,
            job.wanted,
            job.model.least,
            held=self._held.get(n, ()),
            restarts=int(self._restarts[n]),
        )

    def _move(self, n: int, gpus: GPUs) -> None:
        """Give a job other GPUs. The iteration that it is in is lost."""
        job, state = self.jobs[n], self._state
        if self._held.get(n) or self._left[n] < job.work:
            self._restarts[n] += 1
        if not gpus:
            del self._held[n], self._traffic[n]
            return
        start = self._now + (RESTART_S if self._left[n] < job.work else 0.0)
        profile = job.profile(len(gpus))
        self._held[n] = gpus
        self._profiles[n] = profile
        self._traffic[n] = traffic(self.network, self.cluster.gpus_per_server, job.model.pattern, gpus)
        self._phases[n] = 0.0
        for i, phase in enumerate(profile.phases):
            self._phases[n, i] = phase.seconds, phase.rate
        adjusted = state[n]["adjusted"]
        state[n] = np.zeros((), training.JOB)
        state[n]["adjusted"] = adjusted
        state[n]["phases"] = len(profile.phases)
        state[n]["ready"] = state[n]["began"] = start
        state[n]["iterations"] = math.ceil(self._left[n] / len(gpus) - 1e-9)
        state[n]["alone"] = profile.period
        state[n]["rested"] = REST

    # -- Cassini

    def _links(self, allocation: Allocation) -> list[Link]:
        """The links that several jobs cross under a placement."""
        crossing: dict[int, list[str]] = {}
        for ident, gpus in allocation.items():
            pattern = self.jobs[self._number[ident]].model.pattern
            its = traffic(self.network, self.cluster.gpus_per_server, pattern, gpus)
            for link in np.flatnonzero(its.flows).tolist():
                crossing.setdefault(link, []).append(ident)
        return [
            Link(self.network.link_names[link], float(self.network.capacity[link]), tuple(idents))
            for link, idents in sorted(crossing.items())
            if len(idents) > 1
        ]

    def _choose(self, candidates: Sequence[Allocation]) -> int:
        found = choose(
            [self._links(each) for each in candidates], self._alone(candidates[0]), seed=self._seed
        )
        self._scores.append(found.interleaving.score)
        return found.candidate

    def _alone(self, allocation: Allocation) -> dict[str, Profile]:
        return {
            ident: self.jobs[self._number[ident]].profile(len(gpus)) for ident, gpus in allocation.items()
        }

    def _count(self, allocation: Allocation, links: Sequence[Link], paces: Plan | None) -> None:
        before = self._placed
        self._placed = Placed(
            before.jobs + sum(map(bool, allocation.values())),
            before.sharing + len({ident for link in links for ident in link.jobs}),
            before.paced + (len(paces.grids) if paces else 0),
            before.shifted + (sum(shift > 0.0 for shift in paces.shifts.values()) if paces else 0),
        )

    def _pace(self, allocation: Allocation, links: Sequence[Link]) -> Plan:
        """Give jobs their paces, as the live policy does when a job comes or goes."""
        profiles = self._alone(allocation)
        starts = {ident: float(self._state[self._number[ident]]["began"]) for ident in allocation}
        found = plan(profiles, links, starts, bound=BOUND, seed=self._seed)
        self._state["grid"] = 0
        for group, members in enumerate(found.groups):
            for ident in members:
                state, grid = self._state[self._number[ident]], found.grids[ident]
                state["group"] = group
                state["anchor"] = round(grid.anchor * 1e9)
                state["grid"] = round(grid.period * 1e9)
                state["bound"] = round(BOUND * grid.period * 1e9)
        return found
