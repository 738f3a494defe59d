"""Simulated jobs that wait for GPUs, in the queue of live clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from schedulers.placement.cluster import Cluster, Placement, Request, empty
from schedulers.placement.queue import Job as Waiting
from schedulers.placement.queue import Queue
from schedulers.placement.strategies import Strategy
from simulation.jobs import Job


@dataclass(frozen=True)
class Queued:
    """A job that waits for GPUs."""

    request: Request
    arrival_s: float
    alone_s: float
    """How long it runs if no other does."""
    placed: Callable[[Placement], Job]
    """Returns its tasks on the GPUs that it got."""


@dataclass
class GpuQueue:
    """Start jobs when the strategy finds GPUs for them (`simulation.engine.Admission`)."""

    jobs: Sequence[Queued]
    cluster: Cluster
    strategy: Strategy
    order: str = "fifo"
    backfill: bool = False
    queue: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = Queue(empty(self.cluster), self.strategy, self.order, self.backfill)

    def arrived(self, job: int) -> None:
        """See Admission."""
        its = self.jobs[job]
        self.queue.submit(job, Waiting(its.request, its.arrival_s, its.alone_s))

    def ended(self, job: int) -> None:
        """See Admission."""
        self.queue.end(job)

    def started(self, now: float) -> Iterator[tuple[int, Job]]:
        """See Admission."""
        for index, outcome in self.queue.start(now):
            yield index, self.jobs[index].placed(outcome.placement)
