"""The queue in front of a cluster: which job is tried when, and why a job waits."""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from schedulers.placement.cluster import Placement, Port, Request, State, changes, release, reserve
from schedulers.placement.stages import Cause
from schedulers.placement.strategies import Strategy


@dataclass(frozen=True)
class Job:
    """A request that arrives at `arrival_s` and runs for `duration_s` once it is placed.

    Without a deadline of its own a job is due when it would end if it began at once. `owner` is the submitter
    whose job it is; empty for operators.
    """

    request: Request
    arrival_s: float
    duration_s: float
    deadline_s: float | None = None
    owner: str = ""

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


Reason = Cause | Literal["failure", "queue", "share"]
"""Why a job waits: for GPUs, for the network, for something that has failed, for a job in front of it, or for
other jobs of its owner, who has as many GPUs as an owner may have."""


@dataclass(frozen=True)
class Waiting:
    """From when until when a job waited, and why; `behind` is the job in front of it."""

    from_s: float
    to_s: float
    cause: Reason
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
    cause: Reason | None = None
    behind: str | None = None
    intervals: list[Waiting] = field(default_factory=list)

    def waits(self, now: float, cause: Reason | None, behind: str | None = None) -> None:
        if (cause, behind) == (self.cause, self.behind):
            return
        if self.cause and now > self.since_s:
            self.intervals.append(Waiting(self.since_s, now, self.cause, self.behind))
        self.since_s, self.cause, self.behind = now, cause, behind


@dataclass(frozen=True, order=True)
class _Running:
    """A job that holds its placement, and when it said that it would end: the next one comes first."""

    end_s: float
    index: int
    placement: Placement = field(compare=False)
    waiter: _Waiter = field(compare=False)


class Queue:
    """Jobs that wait and jobs that run, as time goes on. Its time is what the callers say.

    Only the first job in the order is tried, unless `backfill`: then those behind it may start if the first
    one can still start as early as without them (EASY backfilling), where running jobs end when they said.
    A job that waits for something that has failed, or for its owner's share, holds nobody up: those behind it
    are tried as if it were not there.

    On paper `release` ends jobs at the end that they said. A live system calls `end` when a job does end,
    `put_back` when it could not get what was placed, and `exclude` when something has failed.
    """

    def __init__(
        self,
        state: State,
        strategy: Strategy,
        order: str = "fifo",
        backfill: bool = False,
        share: int | None = None,
    ) -> None:
        """`share` is how many GPUs the running jobs of one owner may have together."""
        self.state = self._idle = state
        self._share = share
        self.failed_attempts: dict[Cause, int] = {"gpus": 0, "network": 0}
        self._strategy = strategy
        self._key = ORDERS[order]
        self._backfill = backfill
        self._waiting: list[_Waiter] = []
        self._running: list[_Running] = []
        self._failed: tuple[frozenset[int], frozenset[Port]] = frozenset(), frozenset()
        self._refused: dict[int, Reason] = {}  # holds until something is released: less never suffices

    @property
    def next_end_s(self) -> float:
        """When the next running job ends; infinity if none runs."""
        return self._running[0].end_s if self._running else float("inf")

    def submit(self, index: int, job: Job) -> None:
        """Add a job; of equal ones the lower `index` comes first."""
        self._enqueue(_Waiter(index, job, job.arrival_s))

    def _enqueue(self, waiter: _Waiter) -> None:
        self._waiting.append(waiter)
        self._waiting.sort(key=lambda waiter: (*self._key(waiter.job), waiter.index))

    def release(self, now: float) -> None:
        """Release what jobs hold that have ended by `now`."""
        while self.next_end_s <= now:
            self.state = release(self.state, heapq.heappop(self._running).placement)
            self._refused.clear()

    def end(self, index: int) -> None:
        """Release what a job holds, whenever it said that it would end. Raises KeyError if none runs."""
        self._end(index)

    def put_back(self, index: int, now: float) -> None:
        """Release what a job holds, and let it wait in its place again. Raises KeyError if none runs."""
        waiter = self._end(index).waiter
        waiter.since_s = now
        self._enqueue(waiter)

    def withdraw(self, index: int) -> None:
        """Remove a waiting job. Raises KeyError if it does not wait."""
        waiter = next((each for each in self._waiting if each.index == index), None)
        if waiter is None:
            raise KeyError(index)
        self._waiting.remove(waiter)
        self._refused.pop(index, None)

    def resume(self, index: int, job: Job, placement: Placement, start_s: float) -> None:
        """Add a job that runs already. Raises ValueError if something of its placement is not free."""
        self.state = reserve(self.state, placement)
        running = _Running(start_s + job.duration_s, index, placement, _Waiter(index, job, start_s))
        heapq.heappush(self._running, running)

    def exclude(self, gpus: Collection[int], ports: Collection[Port]) -> bool:
        """Give no job these GPUs and ports, and no others than these; return whether they differ from before.

        A job that has some of them keeps them.
        """
        failed = frozenset(gpus), frozenset(ports)
        changed = failed != self._failed
        if changed:
            self._failed = failed
            self._refused.clear()
        return changed

    def waiting(self, now: float) -> dict[int, Waiting | None]:
        """Why each waiting job waits, by index in their order, as `start` found; None before it was asked."""
        return {
            each.index: Waiting(each.since_s, now, each.cause, each.behind) if each.cause else None
            for each in self._waiting
        }

    def preview(self, index: int, job: Job, now: float) -> Outcome | Waiting:
        """What would become of a job submitted now; nothing changes."""
        other = copy.deepcopy(self)
        other.submit(index, job)
        started = dict(other.start(now))
        if index in started:
            return started[index]
        waiting = other.waiting(now)[index]
        assert waiting is not None, "`start` notes why each of the others waits"
        return waiting

    def start(self, now: float) -> list[tuple[int, Outcome]]:
        """Start the jobs that can start and note why the others wait; returns those started, by index."""
        started = []
        first: _Waiter | None = None
        shadow: tuple[float, State] | None = None
        for waiter in list(self._waiting):
            if first is not None and not self._backfill:
                waiter.waits(now, "queue", first.job.request.job)
                continue
            attempt = self._attempt(waiter)
            if first is not None and isinstance(attempt, Placement):
                shadow = shadow or self._shadow(first.job.request)
                if not self._harmless(waiter.job, attempt, now, first.job.request, *shadow):
                    waiter.waits(now, "queue", first.job.request.job)
                    continue
            if isinstance(attempt, Placement):
                started.append(self._begin(waiter, attempt, now))
                shadow = None
                continue
            waiter.waits(now, attempt)
            if first is None and attempt not in ("failure", "share"):
                first = waiter
        return started

    def _attempt(self, waiter: _Waiter) -> Placement | Reason:
        if waiter.index in self._refused:
            return self._refused[waiter.index]
        request = waiter.job.request
        if self._exceeds_share(waiter.job):
            self._refused[waiter.index] = "share"
            return "share"
        placement = self._place(self.state, request)
        if isinstance(placement, Placement):
            return placement
        self.failed_attempts[placement] += 1
        reason: Reason = "failure" if self._waits_for_failure(request) else placement
        self._refused[waiter.index] = reason
        return reason

    def _exceeds_share(self, job: Job) -> bool:
        if self._share is None or not job.owner:
            return False
        held = sum(
            running.waiter.job.request.gpus
            for running in self._running
            if running.waiter.job.owner == job.owner
        )
        return job.request.gpus + held > self._share

    def _waits_for_failure(self, request: Request) -> bool:
        """Whether a job that cannot start could if nothing had failed, or could not though no job ran."""
        return any(self._failed) and (
            isinstance(self._strategy.place(self.state, request), Placement)
            or not isinstance(self._place(self._idle, request), Placement)
        )

    def _begin(self, waiter: _Waiter, placement: Placement, now: float) -> tuple[int, Outcome]:
        self._waiting.remove(waiter)
        waiter.waits(now, None)
        changed = changes(self.state, placement)
        self.state = reserve(self.state, placement)
        end = now + waiter.job.duration_s
        heapq.heappush(self._running, _Running(end, waiter.index, placement, waiter))
        return waiter.index, Outcome(waiter.job, placement, now, end, changed, tuple(waiter.intervals))

    def _end(self, index: int) -> _Running:
        running = next((each for each in self._running if each.index == index), None)
        if running is None:
            raise KeyError(index)
        self._running.remove(running)
        heapq.heapify(self._running)
        self.state = release(self.state, running.placement)
        self._refused.clear()
        return running

    def _place(self, state: State, request: Request) -> Placement | Cause:
        gpus, ports = self._failed
        if gpus or ports:
            state = state.without(gpus=gpus, ports=ports)
        return self._strategy.place(state, request)

    def _shadow(self, request: Request) -> tuple[float, State]:
        """When the request can start if nothing else does, and the state at that time.

        Infinity if it waits for something that has failed.
        """
        state = self.state
        for running in sorted(self._running):
            state = release(state, running.placement)
            if isinstance(self._place(state, request), Placement):
                return running.end_s, state
        return float("inf"), state

    def _harmless(
        self, job: Job, placement: Placement, now: float, first: Request, at: float, then: State
    ) -> bool:
        """Whether the first job can start when it could, with `job` at this placement."""
        if now + job.duration_s <= at:
            return True
        return isinstance(self._place(reserve(then, placement), first), Placement)


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
