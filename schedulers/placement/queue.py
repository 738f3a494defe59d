"""The queue in front of a cluster: which job is tried when, and why a job waits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from schedulers.placement.cluster import Placement, Request, State, changes, release, reserve
from schedulers.placement.stages import Cause
from schedulers.placement.strategies import Strategy


@dataclass(frozen=True)
class Job:
    """A request that arrives at `arrival_s` and runs for `duration_s` once it is placed.

    Without a deadline of its own a job is due when it would end if it began at once.
    """

    request: Request
    arrival_s: float
    duration_s: float
    deadline_s: float | None = None

    @property
    def due_s(self) -> float:
        """When the job should have ended."""
        return self.arrival_s + self.duration_s if self.deadline_s is None else self.deadline_s


Key = tuple[float, ...]

ORDERS: dict[str, Callable[[Job], Key]] = {
    "fifo": lambda job: (job.arrival_s,),
    "edf": lambda job: (job.due_s, job.arrival_s),
    "fewest-gpus": lambda job: (job.request.gpus, job.arrival_s),
}
"""By the name that a user types: the key by which waiting jobs are sorted. Ties go to the job listed first.
Source: vClos, 9.7 (FIFO, EDF, FF)."""


@dataclass(frozen=True)
class Waiting:
    """From when until when a job waited, and for what: for GPUs, for the network, or for the job `behind`."""

    from_s: float
    to_s: float
    cause: Cause | Literal["queue"]
    behind: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job. `changed` counts the circuits that were made for it."""

    job: Job
    placement: Placement
    start_s: float
    end_s: float
    changed: int
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True)
class Run:
    """The jobs' outcomes in the order given, and how many attempts to place one failed, by cause.

    An attempt is made when a job's turn comes, and again when something has been released. "network" counts
    those for which GPUs would have sufficed. Source: vClos, table 2.
    """

    outcomes: tuple[Outcome, ...]
    failed_attempts: dict[Cause, int]


@dataclass
class _Waiter:
    """A job in the queue, since when it waits for the present reason, and what it waited for before."""

    index: int
    job: Job
    since_s: float
    cause: Cause | Literal["queue"] | None = None
    behind: str | None = None
    intervals: list[Waiting] = field(default_factory=list)

    def waits(self, now: float, cause: Cause | Literal["queue"] | None, behind: str | None = None) -> None:
        if (cause, behind) == (self.cause, self.behind):
            return
        if self.cause and now > self.since_s:
            self.intervals.append(Waiting(self.since_s, now, self.cause, self.behind))
        self.since_s, self.cause, self.behind = now, cause, behind


class Queue:
    """Jobs that wait and jobs that run, as time goes on.

    Only the first job in the order is tried, unless `backfill`: then those behind it may start if the first
    one can still start as early as without them (EASY backfilling), where running jobs end when they said.
    """

    def __init__(self, state: State, strategy: Strategy, order: str = "fifo", backfill: bool = False) -> None:
        self.state = state
        self.failed_attempts: dict[Cause, int] = {"gpus": 0, "network": 0}
        self._strategy = strategy
        self._key = ORDERS[order]
        self._backfill = backfill
        self._waiting: list[_Waiter] = []
        self._running: list[tuple[float, int, Placement]] = []
        self._refused: dict[int, Cause] = {}  # holds until something is released: less never suffices

    @property
    def next_end_s(self) -> float:
        """When the next running job ends; infinity if none runs."""
        return self._running[0][0] if self._running else float("inf")

    def submit(self, index: int, job: Job) -> None:
        """Add a job; of equal ones the lower `index` comes first."""
        self._waiting.append(_Waiter(index, job, job.arrival_s))
        self._waiting.sort(key=lambda waiter: (*self._key(waiter.job), waiter.index))

    def release(self, now: float) -> None:
        """Release what jobs hold that have ended by `now`."""
        while self.next_end_s <= now:
            self.state = release(self.state, heapq.heappop(self._running)[2])
            self._refused.clear()

    def start(self, now: float) -> list[tuple[int, Outcome]]:
        """Start the jobs that can start and note why the others wait; returns those started, by index."""
        started = []
        while self._waiting and isinstance(placement := self._attempt(self._waiting[0]), Placement):
            started.append(self._begin(self._waiting[0], placement, now))
        if not self._waiting:
            return started
        first, *others = self._waiting
        first.waits(now, self._refused[first.index])
        shadow = self._shadow(first.job.request) if self._backfill and others else None
        for waiter in others:
            attempt = self._attempt(waiter) if shadow else None
            if isinstance(attempt, Placement):
                assert shadow is not None
                if self._harmless(waiter.job, attempt, now, first.job.request, *shadow):
                    started.append(self._begin(waiter, attempt, now))
                    shadow = self._shadow(first.job.request)
                    continue
                attempt = None
            if attempt is None:
                waiter.waits(now, "queue", first.job.request.job)
            else:
                waiter.waits(now, attempt)
        return started

    def _attempt(self, waiter: _Waiter) -> Placement | Cause:
        if waiter.index in self._refused:
            return self._refused[waiter.index]
        placement = self._strategy.place(self.state, waiter.job.request)
        if not isinstance(placement, Placement):
            self.failed_attempts[placement] += 1
            self._refused[waiter.index] = placement
        return placement

    def _begin(self, waiter: _Waiter, placement: Placement, now: float) -> tuple[int, Outcome]:
        self._waiting.remove(waiter)
        waiter.waits(now, None)
        changed = changes(self.state, placement)
        self.state = reserve(self.state, placement)
        end = now + waiter.job.duration_s
        heapq.heappush(self._running, (end, waiter.index, placement))
        return waiter.index, Outcome(waiter.job, placement, now, end, changed, tuple(waiter.intervals))

    def _shadow(self, request: Request) -> tuple[float, State]:
        """When the request can start if nothing else does, and the state at that time."""
        state = self.state
        for end, _, placement in sorted(self._running, key=lambda running: running[:2]):
            state = release(state, placement)
            if isinstance(self._strategy.place(state, request), Placement):
                return end, state
        raise ValueError(f"job {request.job}: cannot start even when no other job runs")

    def _harmless(
        self, job: Job, placement: Placement, now: float, first: Request, at: float, then: State
    ) -> bool:
        """Whether the first job can start when it could, with `job` at this placement."""
        if now + job.duration_s <= at:
            return True
        return isinstance(self._strategy.place(reserve(then, placement), first), Placement)


def run(
    jobs: Sequence[Job], state: State, strategy: Strategy, order: str = "fifo", backfill: bool = False
) -> Run:
    """Run jobs through a queue onto a cluster, each for its duration.

    Raises ValueError for a job that cannot start even when it is alone.
    """
    for request in {(job.request.gpus, job.request.pattern): job.request for job in jobs}.values():
        if not isinstance(strategy.place(state, request), Placement):
            raise ValueError(f"job {request.job}: cannot start even when no other job runs")
    queue = Queue(state, strategy, order, backfill)
    arrivals = deque(sorted(enumerate(jobs), key=lambda each: (each[1].arrival_s, each[0])))
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(jobs):
        now = min(queue.next_end_s, arrivals[0][1].arrival_s if arrivals else float("inf"))
        queue.release(now)
        while arrivals and arrivals[0][1].arrival_s <= now:
            queue.submit(*arrivals.popleft())
        outcomes.update(queue.start(now))
    return Run(tuple(outcomes[index] for index in range(len(jobs))), queue.failed_attempts)
