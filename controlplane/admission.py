"""Admits jobs into a running network: each gets GPUs, links, circuits and tables of its own, or waits.

Admitting a job is one transaction: place, reserve (in the ledger), make the circuits, write the tables of
every switch. Whatever fails, all of it is undone and the job waits in its place again. A job leaves in the
reverse order: tables, circuits, reservation. The ledger is written before anything is made, and after it has
been undone, so that the next controller knows what a killed one may have left: it undoes what was half done,
and makes sure of the rest.

One task does all of this, one job after another. Source: vClos, 4.3 and 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from controlplane.ledger import OVER, Entry, Ledger, Over
from controlplane.routing import DEFAULT_VRF
from controlplane.tenants import Tenant
from machine.errors import BadInput, EntrainError
from machine.explain import suggestion
from schedulers.placement.cluster import Circuit, Placement, Port, Request, State, wired
from schedulers.placement.queue import Job, Outcome, Queue, Waiting
from schedulers.placement.stages import Cause
from schedulers.placement.strategies import Strategy

FIRST_VRF = DEFAULT_VRF + 1
"""The VRFs of jobs begin here. Those below are the fabric's, and that of hosts in a network without jobs."""

RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
"""Seconds until what has failed is tried again: twice as long each time, up to the longest."""

JOBS_PER_SUBMITTER = 256
"""Jobs that wait or run, of one submitter, if a cluster says nothing else."""
MOST_UNREAD = 10_000
"""Changes that a watcher may leave unread."""

_MOST_REASONS = 3
"""How many different failures a line names."""


def in_one_line(reasons: Iterable[str]) -> str:
    """Return the first reasons, and how many more there are."""
    first = [*reasons]
    more = f", and {len(first) - _MOST_REASONS} more" if len(first) > _MOST_REASONS else ""
    return ", ".join(first[:_MOST_REASONS]) + more


Step = Literal[
    "reserved", "circuits", "tables", "ready", "leaving", "no tables", "no circuits", "over", "back"
]
"""What was last done for a job. It is `back` in the queue after what was half done has been undone."""


class TooMany(EntrainError):
    """Somebody has as much of something as he can have."""


@dataclass(frozen=True)
class Failures:
    """What no job gets at present, each with its reason."""

    gpus: Mapping[int, str]
    ports: Mapping[Port, str]

    def __str__(self) -> str:
        return in_one_line(dict.fromkeys((*self.gpus.values(), *self.ports.values())))


class Switches(Protocol):
    """The switches of the cluster."""

    async def apply(self, tenants: Sequence[Tenant], concerned: Sequence[Tenant]) -> None:
        """Give every switch the tables with which exactly these jobs have networks.

        If one fails, restores all and raises its error (EntrainError). A switch that does not answer fails if
        a job that this concerns needs it; otherwise it gets its tables when it is back.
        """

    def failures(self) -> Failures:
        """Return the GPUs and ports of switches that are not ready."""


class Circuits(Protocol):
    """The optical circuit switch of the cluster. Coroutines raise EntrainError if it does not answer."""

    @property
    def silence(self) -> str:
        """Why it did not answer when it was last asked; empty if it did."""

    async def change(self, owner: str, wanted: Collection[Circuit]) -> None:
        """Make these circuits, and let `owner` have them and no others.

        Raises EntrainError if one does not come up or another owner has its port; then it has none.
        """

    async def release(self, owner: str) -> None:
        """Let nobody have the owner's circuits. They stay until their ports are needed."""

    async def owners(self) -> Collection[str]:
        """Return who has circuits."""

    async def joined(self) -> Collection[Circuit]:
        """Return the circuits that exist."""

    def failures(self) -> Failures:
        """Return the ports that do not work: all of them while the switch does not answer."""


@dataclass(frozen=True)
class JobStatus:
    """A job, why it waits if it does, and what was last done for it."""

    entry: Entry
    waiting: Waiting | None = None
    step: Step | None = None


class Admission:
    """The jobs of a cluster, in a context: it goes on from the ledger, and admits until it is closed.

        async with Admission(empty(cluster), hosts, strategy, ledger, switches) as admission:
            await admission.submit(Request("bert", 8))

    `hosts` has the name of each GPU's host. `order`, `backfill` and `share` are those of `Queue`. A submitter
    has at most `most_jobs` jobs that wait or run. `clock` returns seconds since 1970. `on_step` gets each
    step of a job as soon as it is done, `on_event` a line about each failure.
    """

    def __init__(
        self,
        idle: State,
        hosts: Sequence[str],
        strategy: Strategy,
        ledger: Ledger,
        switches: Switches,
        circuits: Circuits | None = None,
        *,
        order: str = "fifo",
        backfill: bool = False,
        share: int | None = None,
        most_jobs: int = JOBS_PER_SUBMITTER,
        clock: Callable[[], float] = time.time,
        on_step: Callable[[Entry, Step], None] = lambda *_: None,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.strategy = strategy
        self._idle = idle
        self._hosts = hosts
        self._ledger = ledger
        self._switches = switches
        self._circuits = circuits
        self._clock = clock
        self._on_step = on_step
        self._on_event = on_event
        self._queue = Queue(idle, strategy, order, backfill, share)
        self._share = share
        self._most_jobs = most_jobs
        self._entries: dict[int, Entry] = {}
        self._leaving: dict[int, Over | Literal["waiting"]] = {}
        self._tables_agree = False
        self._circuits_agree = circuits is None
        self._dark: set[int] = set()  # running jobs that may lack circuits
        self._asking: asyncio.Task[None] | None = None
        self._problem = ""
        self._told: Mapping[int, tuple[str, str | None]] = {}
        self._watchers: set[asyncio.Queue[JobStatus]] = set()
        self._turn_ends: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None]

    async def __aenter__(self) -> Admission:
        for entry in self._ledger.present():
            self._entries[entry.id] = entry
            if entry.placement is None:
                self._queue.submit(entry.id, entry.job)
                continue
            assert entry.start_s is not None, "who holds a placement has begun"
            self._queue.resume(entry.id, entry.job, entry.placement, entry.start_s)
            if entry.phase == "admitting":
                self._leaving[entry.id] = "waiting"
            elif entry.phase == "leaving":
                self._leaving[entry.id] = entry.outcome
        self._worker = asyncio.create_task(self._work(), name="admission")
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self._worker, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])  # unlike `await task`, it does not hide that we are cancelled, too
                if not task.cancelled():
                    task.result()

    # -- what users ask for

    async def submit(
        self,
        request: Request,
        duration_s: float = math.inf,
        deadline_s: float | None = None,
        owner: str = "",
    ) -> JobStatus:
        """Let a job of `owner` wait for its turn.

        Raises BadInput if it could never start or its name is taken, and TooMany if an owner other than the
        operator has as many jobs as a submitter may have.
        """
        job = self._checked(request, duration_s, deadline_s, owner)
        if owner and sum(entry.owner == owner for entry in self._entries.values()) >= self._most_jobs:
            raise TooMany(f"{owner} has {self._most_jobs} jobs; cancel one, or wait until one is over")
        entry = self._ledger.add(job)
        self._entries[entry.id] = entry
        self._queue.submit(entry.id, job)
        self._wake.set()
        return self._status(entry)

    async def end(self, name: str, outcome: Over = "ended") -> JobStatus:
        """Let a job leave the queue, or release what it holds, and return what has become of it.

        It is still `leaving` if something of it cannot be released yet. Raises BadInput if there is no such
        job.
        """
        entry = self._find(name)
        if entry.id in self._queue.waiting(self._clock()):  # and not about to be admitted
            self._over(entry, outcome)
            self._queue.withdraw(entry.id)
        else:
            self._leaving[entry.id] = outcome
            if entry.phase == "running":
                entry = self._put(replace(entry, phase="leaving", outcome=outcome), "leaving")
        number = entry.id
        await self.settled()
        return self._status(self._entries.get(number) or self._ledger.entry(number))

    def owner_of(self, name: str) -> str:
        """Return whose a job is; empty for operators'. Raises BadInput if there is no such job."""
        return self._find(name).owner

    def jobs(self, *, past: bool = False) -> list[JobStatus]:
        """Return the jobs: those that are over if `past`, those that have a network, those that wait."""
        waiting = self._queue.waiting(self._clock())
        present = [entry for number, entry in self._entries.items() if number not in waiting]
        queued = [JobStatus(self._entries[number], why) for number, why in waiting.items()]
        return [*map(JobStatus, (*(self._ledger.past() if past else ()), *present)), *queued]

    def preview(
        self,
        request: Request,
        duration_s: float = math.inf,
        deadline_s: float | None = None,
        owner: str = "",
    ) -> Outcome | Waiting:
        """Return what a job of `owner` would get now, or why it would wait. Raises BadInput."""
        job = self._checked(request, duration_s, deadline_s, owner)
        return self._queue.preview(max(self._entries, default=0) + 1, job, self._clock())

    async def watch(self, name: str = "") -> AsyncIterator[JobStatus]:
        """Yield how each job stands, or that job, and again whenever a step is done or its wait changes.

        Ends when the job that was asked for is over. Raises BadInput if there is no such job, and TooMany if
        MOST_UNREAD changes wait for the caller.
        """
        if name:
            self._find(name)
        changes: asyncio.Queue[JobStatus] = asyncio.Queue()
        for status in self.jobs():
            changes.put_nowait(status)
        self._watchers.add(changes)
        try:
            while True:
                if changes.qsize() > MOST_UNREAD:
                    raise TooMany(f"{MOST_UNREAD} changes are unread; read faster, or watch one job")
                status = await changes.get()
                if name and status.entry.name != name:
                    continue
                yield status
                if name and status.entry.phase in OVER:
                    return
        finally:
            self._watchers.discard(changes)

    def look(self) -> None:
        """Look whether something that has failed works again, or no longer works."""
        self._wake.set()

    async def settled(self) -> None:
        """Wait until everything that was asked for before is done, or was tried and has failed."""
        end = asyncio.get_running_loop().create_future()
        self._turn_ends.append(end)
        self._wake.set()
        worker = self._worker
        await asyncio.wait([end, worker], return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            worker.result()  # raises what has ended it

    @property
    def problem(self) -> str:
        """What keeps some job from being admitted or released; empty if nothing does."""
        return self._problem

    @property
    def failed_attempts(self) -> Mapping[Cause, int]:
        """How often a job could not be placed, by cause (`Queue`)."""
        return dict(self._queue.failed_attempts)

    @property
    def free_gpus(self) -> int:
        """How many GPUs no job has."""
        return int(self._queue.state.gpus.sum())

    def circuits(self) -> dict[Circuit, str]:
        """Return the circuits that jobs hold, with the jobs' names."""
        holding = [(entry.name, entry.placement) for entry in self._entries.values()]
        return {each: name for name, held in holding if held is not None for each in held.circuits}

    def hosts_of(self, placement: Placement) -> tuple[str, ...]:
        """Return the hosts of a placement by name, in the order of the ranks."""
        return tuple(self._hosts[gpu] for gpu in placement.gpus)

    def failures(self) -> Failures:
        """Return what no job gets at present."""
        both = [self._switches.failures()]
        if self._circuits is not None:
            both.append(self._circuits.failures())
        gpus = {gpu: why for each in both for gpu, why in each.gpus.items()}
        return Failures(gpus, {port: why for each in both for port, why in each.ports.items()})

    def _checked(self, request: Request, duration_s: float, deadline_s: float | None, owner: str) -> Job:
        taken = next((each for each in self._entries.values() if each.name == request.job), None)
        if taken is not None:
            raise BadInput(
                f"name: job {request.job!r} is {taken.phase} already; choose another name, or cancel that one"
            )
        if request.gpus < 1:
            raise BadInput(f"gpus: is {request.gpus}; ask for at least 1")
        if not duration_s > 0:
            raise BadInput(f"duration_s: is {duration_s:g}; give seconds above 0, or leave it out")
        if reason := self.strategy.refusal(self._idle, request):
            raise BadInput(f"gpus: {reason}")
        if owner and self._share is not None and request.gpus > self._share:
            raise BadInput(f"gpus: is {request.gpus}; all jobs of a submitter have at most {self._share}")
        return Job(request, self._clock(), duration_s, deadline_s, owner)

    def _find(self, name: str) -> Entry:
        for entry in self._entries.values():
            if entry.name == name:
                return entry
        names = [entry.name for entry in self._entries.values()]
        raise BadInput(f"there is no job {name!r}; {suggestion(name, names) if names else 'there are none'}")

    def _status(self, entry: Entry, step: Step | None = None) -> JobStatus:
        waiting = self._queue.waiting(self._clock()).get(entry.id) if entry.phase == "waiting" else None
        return JobStatus(entry, waiting, step)

    # -- the task

    async def _work(self) -> None:
        pause_s = RETRY_S
        while True:
            self._wake.clear()
            ends, self._turn_ends = self._turn_ends, []
            await self._turn()
            for end in ends:
                if not end.done():
                    end.set_result(None)
            if not self._problem:
                pause_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                # not `wait_for`: until Python 3.12 it ignores a cancellation at the moment of the event
                async with asyncio.timeout(pause_s if self._problem else LONGEST_RETRY_S):
                    await self._wake.wait()
                continue
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    async def _turn(self) -> None:
        """Do all that can be done now. `problem` says what has failed."""
        try:
            await self._look_at_circuits()
            if not self._tables_agree:  # only a start leaves room for doubt
                await self._switches.apply(self._tenants(), ())
                self._tables_agree = True
            self._exclude()
            while (failed := await self._round()) is not None:
                if not self._exclude():
                    raise failed
        except EntrainError as error:
            self._fail(str(error))
        except Exception as error:  # never stop admitting silently
            self._fail(repr(error))
        else:
            self._fail(self._circuits.silence if self._circuits is not None else "")
        self._tell_waits()

    def _fail(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._on_event(problem)
        self._problem = problem

    def _tell_waits(self) -> None:
        """Tell watchers of each job that now waits for something else."""
        waiting = self._queue.waiting(self._clock())
        for number, each in waiting.items():
            if each is not None and each.cause == "failure" and not self._entries[number].problem:
                self._entries[number] = replace(self._entries[number], problem=str(self.failures()))
        now = {number: (each.cause, each.behind) for number, each in waiting.items() if each is not None}
        for number, reason in now.items():
            if self._told.get(number) != reason:
                self._publish(JobStatus(self._entries[number], waiting[number]))
        self._told = now

    async def _look_at_circuits(self) -> None:
        """Make the circuits those of the jobs that run, if that is in doubt, and learn what works again.

        A switch that does not answer is asked by a task of its own, while jobs without circuits come and go.
        """
        if self._circuits is None:
            return
        if self._circuits.silence:
            self._circuits_agree = False
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(self._circuits), name="asking the OCS")
            return
        try:
            if not self._circuits_agree:
                await self._agree(self._circuits)
            elif self._circuits.failures().ports or self._dark:
                await self._light(self._circuits)
                await self._rewire()
        except EntrainError:
            if not self._circuits.silence:
                raise

    async def _ask(self, circuits: Circuits) -> None:
        with contextlib.suppress(EntrainError):
            await circuits.joined()
            self.look()

    async def _agree(self, circuits: Circuits) -> None:
        """Let nobody hold circuits but the jobs that there are, and each that runs its own."""
        names = {entry.name for entry in self._entries.values()}
        for owner in set(await circuits.owners()) - names:
            await circuits.release(owner)
        self._dark = {number for number, entry in self._entries.items() if entry.phase == "running"}
        await self._light(circuits)
        await self._rewire()
        self._circuits_agree = True

    async def _light(self, circuits: Circuits) -> None:
        """Make the circuits of running jobs that may lack some. One that cannot be made holds nobody up."""
        for number in list(self._dark):
            entry = self._entries.get(number)
            placement = entry.placement if entry is not None and entry.phase == "running" else None
            if entry is not None and placement is not None and placement.circuits:
                try:
                    await circuits.change(entry.name, placement.circuits)
                except EntrainError as error:
                    if circuits.silence:
                        raise
                    if str(error) != entry.problem:
                        self._entries[number] = replace(entry, problem=str(error))
                        self._on_event(f"job {entry.name}: {error}")
                    continue
            self._dark.discard(number)

    def _exclude(self) -> bool:
        """Give no job what has failed; return whether that differs from before."""
        failures = self.failures()
        return self._queue.exclude(failures.gpus.keys(), failures.ports.keys())

    async def _round(self) -> EntrainError | None:
        """Release what jobs leave, then admit those that can start, until one fails, which is undone.

        A job that cannot be released delays no other. Returns what has failed.
        """
        leaving = list(self._leaving)
        kept = await self._leave_all(leaving)
        stuck = {number for number in leaving if number in self._leaving}
        failed: EntrainError | None = None
        for number, outcome in self._queue.start(self._clock()):
            if number in self._leaving:  # cancelled while others were admitted
                continue
            if failed is not None:
                self._queue.put_back(number, self._clock())
                continue
            try:
                await self._admit(number, outcome)
            except Exception as error:  # also one that nobody expects must not leave half a job behind
                failed = error if isinstance(error, EntrainError) else EntrainError(repr(error))
                self._entries[number] = replace(self._entries[number], problem=str(failed))
                self._leaving.setdefault(number, "waiting")
        rest = await self._leave_all([number for number in self._leaving if number not in stuck])
        return failed or rest or kept

    async def _admit(self, number: int, outcome: Outcome) -> None:
        placement = outcome.placement
        entry = replace(
            self._entries[number],
            phase="admitting",
            vrf=self._free_vrf(),
            placement=placement,
            start_s=outcome.start_s,
            changed=outcome.changed,
            waited=outcome.waiting,
        )
        self._put(entry, "reserved")
        if self._circuits is not None and placement.circuits:
            await self._circuits.change(entry.name, placement.circuits)
            self._tell(entry, "circuits")
        tenant = self._tenant(entry, placement)
        await self._switches.apply([*self._tenants(), tenant], [tenant])
        self._tell(entry, "tables")
        self._put(replace(entry, phase="running", start_s=self._clock()), "ready")

    async def _leave_all(self, numbers: Sequence[int]) -> EntrainError | None:
        """Release what these jobs leave. One that fails does not stop the others; return its error."""
        failed: EntrainError | None = None
        for number in numbers:
            try:
                await self._leave(number)
            except EntrainError as error:
                failed = error
        return failed

    async def _leave(self, number: int) -> None:
        entry = self._entries[number]
        if entry.phase == "running":  # it was to leave while it was admitted
            over: Over = "cancelled" if self._leaving[number] == "cancelled" else "ended"
            entry = self._put(replace(entry, phase="leaving", outcome=over), "leaving")
        if entry.placement is not None:  # it has begun to be admitted
            had = [self._tenant(entry, entry.placement)] if entry.phase == "leaving" else []
            await self._switches.apply(self._tenants(), had)
            self._tell(entry, "no tables")
        if self._circuits is not None and entry.placement is not None and entry.placement.circuits:
            await self._circuits.release(entry.name)
            self._tell(entry, "no circuits")
            if self._leaving[number] == "waiting" and not self._circuits.silence:
                await self._rewire()
        outcome = self._leaving[number]  # a job that was to wait again may have been cancelled meanwhile
        if outcome == "waiting":
            back = replace(entry, phase="waiting", vrf=0, placement=None, start_s=None, changed=0)
            self._put(back, "back")
            self._queue.put_back(number, self._clock())
        else:
            self._over(entry, outcome)
            self._queue.end(number)
        del self._leaving[number]

    async def _rewire(self) -> None:
        """Let the queue know which circuits there are. What jobs hold of them counts as made."""
        assert self._circuits is not None
        held = [entry.placement.circuits for entry in self._entries.values() if entry.placement is not None]
        there = [*await self._circuits.joined(), *itertools.chain.from_iterable(held)]
        self._queue.state = wired(self._queue.state, there)

    def _tenants(self) -> list[Tenant]:
        return [
            self._tenant(entry, entry.placement)
            for entry in self._entries.values()
            if entry.phase == "running" and entry.placement is not None
        ]

    def _tenant(self, entry: Entry, placement: Placement) -> Tenant:
        return Tenant(entry.name, entry.vrf, self.hosts_of(placement), placement)

    def _free_vrf(self) -> int:
        taken = {entry.vrf for entry in self._entries.values() if entry.placement is not None}
        return next(vrf for vrf in itertools.count(FIRST_VRF) if vrf not in taken)

    def _put(self, entry: Entry, step: Step) -> Entry:
        self._ledger.put(entry)
        self._entries[entry.id] = entry
        self._tell(entry, step)
        return entry

    def _over(self, entry: Entry, outcome: Over) -> None:
        done = self._put(replace(entry, phase=outcome, end_s=self._clock()), "over")
        del self._entries[done.id]

    def _tell(self, entry: Entry, step: Step) -> None:
        self._publish(self._status(entry, step))
        self._on_step(entry, step)

    def _publish(self, status: JobStatus) -> None:
        for changes in self._watchers:
            if changes.qsize() <= MOST_UNREAD:  # one that is slower is told so, and gets no more
                changes.put_nowait(status)
