"""The event loop: it runs jobs, their phases and their coflows over a transport that moves the bytes.

Time is in seconds, sizes in bytes. Events at the same instant are handled together, completions before
arrivals; then the transport decides once. Nothing here is random: the same jobs give the same result, bit for
bit.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from machine.errors import EntrainError
from schedulers.compiled import Floats
from simulation.jobs import Coflow, Compute, Job, check_jobs

_ARRIVES, _BEGINS = -1, -2
"""Events of a job that end no task: it arrives; an iteration begins that has waited for its pace."""
SAME = 1e-12
"""Times whose relative difference is smaller count as the same instant."""


class SimulationError(EntrainError):
    """A fault in a policy or the simulator: an invariant is violated, or nothing can proceed."""


def checking(asked: bool | None) -> bool:
    """Return whether transports assert their invariants: `asked`, or by default whether $ENTRAIN_CHECK is
    set, as it is in tests."""
    return bool(os.environ.get("ENTRAIN_CHECK")) if asked is None else asked


@dataclass(frozen=True, slots=True)
class Finished:
    """A delivered coflow: its completion time, how long none of its flows could send, and its flows'
    completion times (F,). All in s."""

    handle: int
    time: float
    waiting: float
    flow_times: Floats | None = None


class Transport(Protocol):
    """What moves the bytes of coflows. The engine calls `advance` with times that never decrease."""

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """Take over a coflow that is valid from `now` on."""

    def next_event(self) -> float:
        """Return the time of the next completion or decision; infinity if there is none."""

    def advance(self, now: float) -> list[Finished]:
        """Advance to `now` and return what has completed."""

    def decide(self, now: float) -> None:
        """Set new rates where a decision is due."""

    def job_done(self, job: int) -> None:
        """Drop the state of a completed job."""


class Admission(Protocol):
    """What decides when a job starts and where it runs. Jobs are named by their place in the list."""

    def arrived(self, job: int) -> None:
        """Take note that a job has arrived."""

    def ended(self, job: int) -> None:
        """Take note that a job has ended."""

    def started(self, now: float) -> Iterable[tuple[int, Job]]:
        """Return the jobs that start at `now`, each with the tasks that it runs there."""


@dataclass(slots=True)
class JobRecord:
    """The outcome of a job. Times are in s; `waiting` is how long its coflows could not send."""

    ident: str
    arrival: float
    finish: float = math.nan
    waiting: float = 0.0
    start: float = math.nan

    @property
    def jct(self) -> float:
        """Job completion time, s."""
        return self.finish - self.arrival


@dataclass(slots=True)
class CoflowRecord:
    """The outcome of a coflow, which was valid from `arrival` to `finish` (s)."""

    ident: str
    job: str
    arrival: float
    work: Coflow
    finish: float = math.nan
    flow_times: Floats | None = None

    @property
    def bytes(self) -> float:
        """Bytes of all flows."""
        return self.work.bytes

    @property
    def cct(self) -> float:
        """Coflow completion time, s."""
        return self.finish - self.arrival


@dataclass(slots=True)
class Outcome:
    """The records, in the jobs' order, and the number of events."""

    jobs: list[JobRecord]
    coflows: list[CoflowRecord] = field(default_factory=list)
    events: int = 0


@dataclass(slots=True)
class _Progress:
    iteration: int = 0
    waiting_for: list[int] = field(default_factory=list)
    left: int = 0


class Simulation:
    """Run `jobs` over `transport`. Without `keep_coflows`, runs of millions of iterations need less memory.

    A job starts when it arrives, or with `admission` when that starts it, with the tasks that it then gets.
    With `pacing`, an iteration that could start at a time starts at the one which this returns for the job.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        transport: Transport,
        *,
        admission: Admission | None = None,
        pacing: Callable[[int, float], float] | None = None,
        keep_coflows: bool = True,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        check_jobs(jobs)
        self._jobs = list(jobs)
        self._transport = transport
        self._admission = admission
        self._pacing = pacing
        self._keep = keep_coflows
        self._progress = progress
        self._state = [_Progress() for _ in jobs]
        self._heap: list[tuple[float, int, int, int]] = []  # time, tie-break, job, task or event
        self._sequence = 0
        self._running: dict[int, tuple[int, int, CoflowRecord | None]] = {}
        self._handle = 0
        self._successors = [_successors(job) for job in jobs]
        self.outcome = Outcome([JobRecord(job.ident, job.arrival) for job in jobs])
        self._done = 0

    def run(self, until: float = math.inf) -> Outcome:
        """Run to the end or to `until` (s); raise SimulationError if unfinished jobs cannot proceed."""
        for j, job in enumerate(self._jobs):
            self._push(job.arrival, j, _ARRIVES)
        transport = self._transport
        while self._done < len(self._jobs):
            now = transport.next_event()
            if self._heap and self._heap[0][0] < now:
                now = self._heap[0][0]
            if not math.isfinite(now):
                stuck = [
                    job.ident
                    for job, r in zip(self._jobs, self.outcome.jobs, strict=True)
                    if math.isnan(r.finish)
                ]
                raise SimulationError(
                    f"jobs {stuck[:5]} cannot proceed: the policy gives them no bandwidth and nothing is due"
                )
            if now > until:
                break
            self.outcome.events += 1
            for finished in transport.advance(now):
                self._coflow_done(finished)
            limit = now + SAME * abs(now)
            while self._heap and self._heap[0][0] <= limit:
                _, _, j, task = heapq.heappop(self._heap)
                if task >= 0:
                    self._task_done(j, task, now)
                elif task == _BEGINS:
                    self._begin_iteration(j, now)
                elif self._admission is None:
                    self._start_job(j, now)
                else:
                    self._admission.arrived(j)
            if self._admission is not None:
                for j, job in self._admission.started(now):
                    self._jobs[j], self._successors[j] = job, _successors(job)
                    self._start_job(j, now)
            transport.decide(now)
        return self.outcome

    def _push(self, time: float, job: int, task: int) -> None:
        heapq.heappush(self._heap, (time, self._sequence, job, task))
        self._sequence += 1

    def _start_job(self, j: int, now: float) -> None:
        self.outcome.jobs[j].start = now
        self._start_iteration(j, now)

    def _start_iteration(self, j: int, now: float) -> None:
        """Begin an iteration, now or at the time that its pace gives."""
        at = now if self._pacing is None else self._pacing(j, now)
        if at > now:
            self._push(at, j, _BEGINS)
        else:
            self._begin_iteration(j, now)

    def _begin_iteration(self, j: int, now: float) -> None:
        state, job = self._state[j], self._jobs[j]
        state.waiting_for = [len(task.after) for task in job.tasks]
        state.left = len(job.tasks)
        for i, task in enumerate(job.tasks):
            if not task.after:
                self._start_task(j, i, now)

    def _start_task(self, j: int, i: int, now: float) -> None:
        job = self._jobs[j]
        work = job.tasks[i].work
        if isinstance(work, Compute):
            self._push(now + work.seconds, j, i)
            return
        handle = self._handle
        self._handle += 1
        record = None
        if self._keep:
            record = CoflowRecord(f"{job.ident}/{self._state[j].iteration}/{i}", job.ident, now, work)
            self.outcome.coflows.append(record)
        self._running[handle] = (j, i, record)
        self._transport.start(handle, j, work, now)

    def _coflow_done(self, finished: Finished) -> None:
        j, i, record = self._running.pop(finished.handle)
        self.outcome.jobs[j].waiting += finished.waiting
        if record is not None:
            record.finish = finished.time
            record.flow_times = finished.flow_times
        self._task_done(j, i, finished.time)

    def _task_done(self, j: int, i: int, now: float) -> None:
        state, job = self._state[j], self._jobs[j]
        state.left -= 1
        if state.left:
            for successor in self._successors[j][i]:
                state.waiting_for[successor] -= 1
                if not state.waiting_for[successor]:
                    self._start_task(j, successor, now)
            return
        state.iteration += 1
        if state.iteration < job.iterations:
            self._start_iteration(j, now)
            return
        self.outcome.jobs[j].finish = now
        self._transport.job_done(j)
        if self._admission is not None:
            self._admission.ended(j)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, now)


def _successors(job: Job) -> list[list[int]]:
    """The tasks that wait for each task of an iteration."""
    successors: list[list[int]] = [[] for _ in job.tasks]
    for i, task in enumerate(job.tasks):
        for before in task.after:
            successors[before].append(i)
    return successors
