"""Jobs that train on a cluster whose scheduler decides at fixed times, as Pollux' authors simulate them
(Pollux, OSDI 2021, section 5.3): steps take as long as measured, whatever other jobs do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from schedulers.placement.cluster import Cluster
from simulation.clusters.applications import Application, Placement, application
from simulation.clusters.goodput import Agent, efficiency
from simulation.clusters.pollux import RESTART_S, Pollux
from simulation.clusters.scheduler import GPUs, Present
from simulation.traces import TrainingJob

NCF_BATCH = 32768
"""Jobs of this application have one GPU and this batch, as in the authors' simulator."""


@dataclass
class Training:
    """A job. Times in s, progress in steps of the initial batch."""

    name: str
    arrival: float
    agent: Agent
    gpus: GPUs = ()
    nodes: Placement = ()
    sizes: tuple[int, int] = (0, 0)
    """The local batch, and the steps accumulated before each that synchronises."""
    epoch: int = 0
    progress: float = 0.0
    still: float = 0.0
    """For how long it still stands still."""
    starts: int = 0
    waited: float = 0.0
    finish: float = math.inf

    @property
    def restarts(self) -> int:
        """How often it went on with other GPUs, also after a pause."""
        return max(self.starts - 1, 0)

    def place(self, gpus: GPUs, per_node: int) -> None:
        """Go on with `gpus`, after a restart if they are others."""
        if gpus == self.gpus:
            return
        self.gpus = gpus
        on = [gpu // per_node for gpu in gpus]
        self.nodes = tuple(on.count(node) for node in sorted(set(on)))
        if gpus:
            self.still = RESTART_S
            self.starts += 1
            self.sizes = self.agent.sizes(len(self.nodes), len(gpus))

    def run(self, now: float, until: float) -> None:
        """Train from `now` on."""
        if not self.gpus:
            self.waited += until - max(now, self.arrival)
            return
        rest = min(self.still, until - now)
        self.still -= rest
        now += rest
        held = self.agent.application
        while now < until:
            local, accumulated = self.sizes
            batch = len(self.gpus) * local * (accumulated + 1)
            step, sync = held.times(self.nodes, local)
            gradient = held.gradient(batch, self.epoch)
            self.agent.observe(len(self.nodes), len(self.gpus), local, step, sync, gradient)
            rate = _rate(held, step + accumulated * (step - sync), gradient, batch)
            ends = now + (held.needed[self.epoch] - self.progress) / rate
            if ends > until:
                self.progress += rate * (until - now)
                now = until
            else:
                now, self.progress = ends, held.needed[self.epoch]
                self.epoch += 1
                if self.epoch == held.epochs:
                    self.finish = now
                    return
            self.sizes = self.agent.sizes(len(self.nodes), len(self.gpus))

    def present(self, per_node: int) -> Present:
        """Return the job as the scheduler of a cluster with `per_node` GPUs on a node sees it."""
        agent, held = self.agent, self.agent.application
        done = held.needed[held.epochs - 1]
        return Present(
            ident=self.name,
            arrival_s=self.arrival,
            work=float(done),
            left=float(done - self.progress),
            speed=lambda gpus: agent.goodput(len({gpu // per_node for gpu in gpus}), len(gpus)),
            wanted=1,
            most=agent.most,
            held=self.gpus,
            restarts=self.restarts,
        )


def _rate(held: Application, seconds: float, gradient: tuple[float, float], batch: int) -> float:
    """Return the progress per second if a batch takes `seconds`."""
    scale = batch / held.initial_batch
    return scale * efficiency(*gradient, scale) / seconds


@cache
def fastest(name: str, cluster: Cluster) -> float:
    """Return how long an application takes if in every epoch it has the number of GPUs and the measured batch
    that suit it best, s. It may have one GPU, or whole nodes."""
    held, per_node = application(name), cluster.gpus_per_server
    placements = [(1,), *((per_node,) * nodes for nodes in range(1, cluster.gpus // per_node + 1))]
    steps: list[tuple[int, float]] = []
    for placement in placements:
        for batch in held.batches.tolist():
            share = math.ceil(batch / sum(placement))
            accumulated = math.ceil(share / held.most_local) - 1
            local = math.ceil(share / (accumulated + 1))
            if local >= held.least_local:
                step, sync = held.times(placement, local)
                steps.append((batch, step + accumulated * (step - sync)))
    return math.fsum(
        progress / max(_rate(held, seconds, held.gradient(batch, epoch), batch) for batch, seconds in steps)
        for epoch, progress in enumerate(np.diff(held.needed, prepend=0.0).tolist())
    )


def train(submitted: Sequence[TrainingJob], cluster: Cluster, scheduler: Pollux) -> list[Training]:
    """Return the jobs after all have ended. The scheduler decides every interval, and its own choice
    counts. Raises BadInput for an application that was not measured."""
    jobs = [
        Training(
            job.ident,
            job.arrival_s,
            Agent(application(job.model), cluster.gpus, batch=NCF_BATCH if job.model == "ncf" else None),
        )
        for job in submitted
    ]
    now = 0.0
    while any(job.finish > now for job in jobs):
        until = scheduler.again(now)
        present = [job for job in jobs if job.arrival <= until and job.finish > now]
        for job in present:
            job.run(now, until)
        now, present = until, [job for job in present if job.finish > until]
        seen = [job.present(cluster.gpus_per_server) for job in present]
        chosen = scheduler.candidates(now, seen, cluster)[0]
        for job in present:
            job.place(chosen.get(job.name, ()), cluster.gpus_per_server)
    return jobs
