"""When the iterations of this host's training processes start: their paces, and what they say of it.

A pace goes into the file in which a process publishes its progress (`wire.progress`), and the process
follows it by itself (`schedulers.cassini.pace`). It holds for `LEASE_S`, and the agent renews it. So if the
agent dies, jobs keep their shift, and nothing corrects their drift. Times are this host's CLOCK_MONOTONIC:
that somebody sets the wall clock changes nothing. The caller finds out how other hosts' clocks compare.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hostbpf.agent.rights import JOBS_PER_USER, ROOT
from hostbpf.rpc.calls import Exhausted
from hostbpf.scheduling.monitor import Monitor, Process
from machine.errors import BadInput
from schedulers.cassini.pace import Pace
from wire.progress import PACE, STARTS, PaceFields, StartFields, pace_offset

LEASE_S = 5.0
"""How long a pace is followed if nobody renews it."""
POLL_S = 0.05
"""How often processes' files are looked at: an iteration is longer."""
RECENT = 64
"""Iterations of a process that are told, the latest."""
_ATTEMPTS = 10
"""Readings of what a process says that it may spoil by writing."""


@dataclass(frozen=True)
class Iteration:
    """How one iteration of a process began: its number, how long the one before it took without waiting, s,
    and how much later than its pace says it started, s.
    """

    number: int
    lasted_s: float
    drift_s: float


@dataclass(frozen=True)
class Starts:
    """A training process of this host, and how its iterations have started."""

    job: str
    uid: int
    pid: int
    paced: bool
    said: StartFields
    recent: tuple[Iteration, ...]


@dataclass
class _Followed:
    """A process's file, open for writing."""

    process: Process
    file: int
    pace: Pace | None = None
    renew_at: float = 0.0
    said: StartFields = field(default_factory=lambda: StartFields(*[0] * 8))
    recent: deque[Iteration] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def begin(self) -> int:
        return pace_offset(self.process.capacity)

    def write(self, pace: Pace | None) -> None:
        """Tell the process its pace, or renew it."""
        sequence = int.from_bytes(os.pread(self.file, 8, self.begin).ljust(8, b"\0"), "little")
        sequence += sequence % 2  # the agent that wrote it has died meanwhile
        until = time.monotonic_ns() + round(LEASE_S * 1e9)
        told = (pace.anchor_ns, pace.period_ns, pace.bound_ns, until) if pace else (0, 0, 0, 0)
        os.pwrite(self.file, (sequence + 1).to_bytes(8, "little"), self.begin)
        whole = PACE.pack(*PaceFields(sequence + 1, *told))
        os.pwrite(self.file, whole[8:], self.begin + 8)
        os.pwrite(self.file, (sequence + 2).to_bytes(8, "little"), self.begin)
        self.pace, self.renew_at = pace, time.monotonic() + LEASE_S / 4

    def look(self) -> None:
        """Take in what the process says."""
        for _ in range(_ATTEMPTS):
            data = os.pread(self.file, STARTS.size, self.begin + PACE.size)
            if len(data) < STARTS.size:
                return
            said = StartFields._make(STARTS.unpack(data))
            if said.sequence % 2 == 0 and os.pread(self.file, STARTS.size, self.begin + PACE.size) == data:
                break
        else:
            return
        if said.starts > self.said.starts:
            self.recent.append(Iteration(said.starts, said.lasted_ns / 1e9, said.drift_ns / 1e9))
        self.said = said


class Paces:
    """The paces of this host's jobs. A user's paces hold for the user's own processes, root's for all.

    Its thread, which begins with the first call, keeps the processes told. Methods may be called from any
    thread.
    """

    def __init__(self, directory: Path | None, netns: str | None) -> None:
        """`directory` and `netns` are as for `Monitor`."""
        self._where = directory, netns
        self._paces: dict[tuple[int, str], Pace] = {}
        self._followed: dict[int, _Followed] = {}  # by the descriptor that the monitor reads
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._monitor: Monitor | None = None
        self._thread: threading.Thread | None = None

    def set(self, user: int, job: str, pace: Pace) -> None:
        """Let the user's processes of `job` follow `pace`. Raises Exhausted beyond JOBS_PER_USER of a user
        other than root.
        """
        with self._lock:
            own = [each for each in self._paces if each[0] == user and each[1] != job]
            if user != ROOT and len(own) >= JOBS_PER_USER:
                raise Exhausted(f"user {user} has {len(own)} jobs with a pace; clear one first")
            self._paces[user, job] = pace
            self._keep()

    def clear(self, user: int, job: str) -> None:
        """Let them start when they like. Raises BadInput if the user has set no pace for `job`."""
        with self._lock:
            if self._paces.pop((user, job), None) is None:
                names = ", ".join(sorted(name for owner, name in self._paces if owner == user))
                raise BadInput(f"job {job!r}: has no pace; there are {names or 'none'}")
            self._keep()

    def starts(self, user: int) -> list[Starts]:
        """How iterations of the user's processes have started, or for root those of all."""
        with self._lock:
            self._keep()
            return [
                Starts(
                    each.process.job,
                    each.process.uid,
                    each.process.pid,
                    each.pace is not None,
                    each.said,
                    tuple(each.recent),
                )
                for each in self._followed.values()
                if user in (ROOT, each.process.uid)
            ]

    def _keep(self) -> None:
        """Tell processes what has changed, renew paces, and take in what processes say."""
        if self._monitor is None:
            self._monitor = Monitor(*self._where)
            self._thread = threading.Thread(target=self._run, name="pacing")
            self._thread.start()
        self._monitor.read()
        there = {process.fd: process for process in self._monitor.processes()}
        for fd in [fd for fd, each in self._followed.items() if there.get(fd) != each.process]:
            os.close(self._followed.pop(fd).file)
        for fd, process in there.items():
            if fd not in self._followed:
                with contextlib.suppress(
                    OSError
                ):  # with a lease, opening fails until the kernel takes it back
                    file = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                    self._followed[fd] = _Followed(process, file)
        for each in self._followed.values():
            each.look()
            pace = self._of(each.process)
            if pace != each.pace or (pace and time.monotonic() >= each.renew_at):
                with contextlib.suppress(OSError):
                    each.write(pace)

    def _of(self, process: Process) -> Pace | None:
        paces: Mapping[tuple[int, str], Pace] = self._paces
        return paces.get((ROOT, process.job)) or paces.get((process.uid, process.job))

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            with self._lock:
                self._keep()

    def close(self) -> None:
        """Take all paces back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for each in self._followed.values():
                with contextlib.suppress(OSError):
                    if each.pace:
                        each.write(None)
                os.close(each.file)
            self._followed.clear()
            if self._monitor is not None:
                self._monitor.close()
                self._monitor = None
