"""Jobs: each repeats an iteration, which is a graph of compute phases and coflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from machine.errors import BadInput
from schedulers.coflow.allocation import bottleneck_time
from schedulers.compiled import Floats, Ints, Routes
from simulation.topology import Topology


@dataclass(frozen=True, eq=False)
class Coflow:
    """Flows that complete together: a coflow is done when its last flow is. `src` and `dst` are host numbers
    (F,), `size` is in bytes (F,). `routes` (F, hops) has the links of each flow, padded with -1; without it
    the topology routes them."""

    src: Ints
    dst: Ints
    size: Floats
    routes: Routes | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not len(self.src) == len(self.dst) == len(self.size):
            raise BadInput("a coflow needs one source, one destination and one size per flow")
        if not len(self.size):
            raise BadInput("a coflow has no flows; leave it out or give it one")
        if not np.isfinite(self.size).all() or not (self.size > 0.0).all():
            bad = self.size[~(np.isfinite(self.size) & (self.size > 0.0))][0]
            raise BadInput(f"a flow has {bad} bytes; sizes must be positive numbers")

    @property
    def bytes(self) -> float:
        """Bytes of all flows."""
        return float(self.size.sum())


def links_of(coflow: Coflow, topology: Topology) -> Routes:
    """Return the links of each flow: the coflow's own routes, or those of the topology. Raises BadInput for
    hosts that do not exist."""
    if coflow.routes is not None:
        return coflow.routes
    return topology.routes(coflow.src, coflow.dst, np.arange(len(coflow.src)))


def coflow(flows: Sequence[tuple[int, int, float]]) -> Coflow:
    """Return the coflow of `flows` (source, destination, bytes)."""
    src, dst, size = zip(*flows, strict=True) if flows else ((), (), ())
    return Coflow(np.array(src, np.int64), np.array(dst, np.int64), np.array(size, float))


@dataclass(frozen=True)
class Compute:
    """A compute phase of `seconds`, which sends nothing."""

    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise BadInput(f"a compute phase lasts {self.seconds} s; give a number of at least 0")


@dataclass(frozen=True)
class Task:
    """A compute phase or coflow of an iteration, and the indices of the tasks that it depends on."""

    work: Coflow | Compute
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """A job that runs the graph `tasks` `iterations` times, one after another, from `arrival` (s) on."""

    ident: str
    arrival: float
    tasks: tuple[Task, ...]
    iterations: int = 1

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput(f"job {self.ident} has no flows and no phases; give it a task")
        if not math.isfinite(self.arrival) or self.arrival < 0:
            raise BadInput(f"job {self.ident} arrives at {self.arrival} s; give a time of at least 0")
        if self.iterations < 1:
            raise BadInput(f"job {self.ident} has {self.iterations} iterations; give at least 1")
        self._order()

    def _order(self) -> list[int]:
        """Return the tasks in an order that respects `after`; raise BadInput for a cycle."""
        n = len(self.tasks)
        for task in self.tasks:
            if any(not 0 <= a < n for a in task.after):
                raise BadInput(
                    f"job {self.ident}: a task starts after task {max(task.after)}, but there are {n}"
                )
        order: list[int] = []
        done: set[int] = set()
        while len(order) < n:
            ready = [i for i in range(n) if i not in done and done.issuperset(self.tasks[i].after)]
            if not ready:
                cycle = sorted(set(range(n)) - done)
                raise BadInput(f"job {self.ident}: tasks {cycle} wait for each other; break the cycle")
            order += ready
            done.update(ready)
        return order

    def lower_bound(self, topology: Topology) -> float:
        """Return the job's completion time (s) alone in the network: the longest path through its phases and
        the Γ of its coflows (Parrot, theorem 3)."""
        need = np.zeros(len(topology.capacity))
        finish = np.zeros(len(self.tasks))
        for i in self._order():
            task = self.tasks[i]
            if isinstance(task.work, Compute):
                own = task.work.seconds
            else:
                work = task.work
                links = links_of(work, topology)
                own = bottleneck_time(links, work.size, 0, len(work.size), topology.capacity, need)
            finish[i] = own + max((finish[a] for a in task.after), default=0.0)
        return float(finish.max()) * self.iterations

    @property
    def bytes(self) -> float:
        """Total bytes that the job sends."""
        return self.iterations * sum(t.work.bytes for t in self.tasks if isinstance(t.work, Coflow))


def chain(ident: str, arrival: float, works: Sequence[Coflow | Compute], iterations: int = 1) -> Job:
    """Return a job whose `works` follow one another."""
    tasks = tuple(Task(work, (i - 1,) if i else ()) for i, work in enumerate(works))
    return Job(ident, arrival, tasks, iterations)


def check_jobs(jobs: Sequence[Job]) -> None:
    """Raise BadInput unless there is at least one job and all names differ."""
    if not jobs:
        raise BadInput("there are no jobs to simulate; give at least one")
    seen: set[str] = set()
    for job in jobs:
        if job.ident in seen:
            raise BadInput(f"job id {job.ident} is listed twice; ids must differ")
        seen.add(job.ident)
