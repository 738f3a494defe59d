"""How a training process publishes its progress: a file of shared memory, laid out as in wire/progress.h.

    with Publisher("vgg16") as publisher:
        entry = publisher.flow(flow, Direction.SENT, role=Role.RING, chunk=1_000_000)
        entry.update(iteration=0, phase=Phase.COMMUNICATING, total=6_000_000, ready=1_000_000, done=0)

The host's agent reads it (`hostbpf.scheduling.monitor.Monitor`) without the process taking part. An update is
a few stores into memory: no system call, no waiting. This module uses the standard library alone, because it
is imported into other people's training processes.

The process keeps its file locked for as long as it lives, and the kernel unlocks it however the process ends.
It is a record lock (fcntl(2), F_SETLK): a forked child does not inherit it, and the kernel tells the agent
who holds it, by the number that this process has in the agent's PID namespace. A process must not open its
own file a second time: closing any descriptor of the file gives up the lock.

Behind the entries the agent writes when iterations are to start (`Publisher.pace`), and the process says when
they did (`Publisher.started`). A process that does not ask starts when it likes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import socket
import struct
import tempfile
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from machine.errors import BadInput, EntrainError

DIRECTORY_VARIABLE = "ENTRAIN_PROGRESS"
JOB_VARIABLE = "ENTRAIN_JOB"
DIRECTORY = Path("/run/entrain/progress")
ROOM = "size=64m,nr_inodes=16k,mode=1777"
"""Of the tmpfs that `DIRECTORY` is: what users write there takes nothing from the rest of /run."""
SUFFIX = ".progress"

MAGIC = b"ENTRPROG"
VERSION = 2
"""The format of a file. Version 1 had no lock."""
CAPACITY = 64
CAPACITY_MAX = 1024
HEADER = struct.Struct("<8sIIII8xQ64s24x")
ENTRY = struct.Struct("<Q4s4sHHBBBxIIQQQQQQQ40x")
PACE = struct.Struct("<QQQQQ24x")
STARTS = struct.Struct("<QQQQqQQQ")
JOB_BYTES = 63
"""The longest name of a job in a file; a zero byte follows."""

_CONFINED = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC (linux/mount.h)
_SO_NETNS_COOKIE = 71
# The 8-byte words of an entry that change; each is written by one store.
_KEY, _PHASE, _ITERATION, _TOTAL, _READY, _DONE, _CARRIED, _CHUNK, _UPDATED = range(2, 11)
_DIRECTION = 0xFF << 40  # its place in the word

_PACE_WORDS = range(5)
_STARTS_WORDS = range(8, 16)
_U64 = (1 << 64) - 1
_ATTEMPTS = 1000  # at reading the pace; the agent writes it within microseconds

Address = tuple[str, int, str, int, int]
"""A flow as its sender sees it (`wire.flow.Flow`): source, port, destination, port, protocol."""


class Direction(IntEnum):
    """Whether the process sends a flow or receives it; an entry with 0 is not in use."""

    SENT = 1
    RECEIVED = 2


class Phase(IntEnum):
    """What a flow's iteration is doing."""

    COMPUTING = 0
    COMMUNICATING = 1


class Header(NamedTuple):
    """The first 128 bytes of the file; `pid` is the process's number in its own PID namespace."""

    magic: bytes
    version: int
    capacity: int
    used: int
    pid: int
    netns: int
    job: bytes


class Fields(NamedTuple):
    """One entry of 128 bytes; an odd `sequence` means that it is being written."""

    sequence: int
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    protocol: int
    direction: int
    role: int
    group: int
    phase: int
    iteration: int
    total: int
    ready: int
    done: int
    carried: int
    chunk: int
    updated_ns: int


class PaceFields(NamedTuple):
    """The 64 bytes behind the entries, which the agent writes; an odd `sequence` means that it is writing.

    Times are CLOCK_MONOTONIC. `schedulers.cassini.pace.Pace` says what they mean; a `period_ns` of 0 means
    none, and after `until_ns` it is not followed: an agent that lives puts that off again and again.
    """

    sequence: int
    anchor_ns: int
    period_ns: int
    bound_ns: int
    until_ns: int


class StartFields(NamedTuple):
    """The 64 bytes behind those, which the process writes; an odd `sequence` means that it is writing."""

    sequence: int
    starts: int
    """Iterations that have begun."""
    started_ns: int
    """When the last one started, after waiting (CLOCK_MONOTONIC)."""
    lasted_ns: int
    """From the start of the one before it to when the last one could have started without waiting."""
    drift_ns: int
    """How much later than its pace says the last one started."""
    waited_ns: int
    """All waiting so far."""
    shifts: int
    """How often it waited because the pace was new."""
    corrections: int
    """How often it waited because it had drifted."""


def pace_offset(capacity: int) -> int:
    """Return where the pace stands in a file with room for `capacity` flows."""
    return HEADER.size + capacity * ENTRY.size


def progress_directory() -> Path:
    """Where processes publish: $ENTRAIN_PROGRESS, else /run/entrain/progress."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY)


def make_directory(directory: Path) -> None:
    """Make the directory in which any user may publish and nobody can remove another user's file.

    A directory that exists stays as it is. `DIRECTORY` is a tmpfs of its own, where root may mount one.
    Raises EntrainError where it cannot be made.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(0o700)
        except FileExistsError:
            if not directory.is_dir():
                raise
        else:
            if directory == DIRECTORY:
                try:
                    _mount(directory)
                except PermissionError:  # in a container, whose /run is its own
                    pass
                except OSError:
                    directory.rmdir()
                    raise
            directory.chmod(0o1777)  # whatever the umask
    except OSError as error:
        raise EntrainError(
            f"{directory}: cannot be made: {error.strerror}; let root make it, or set {DIRECTORY_VARIABLE}"
        ) from error


def _mount(directory: Path) -> None:
    """Mount a tmpfs. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"entrain", os.fsencode(directory), b"tmpfs", _CONFINED, ROOM.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"a tmpfs cannot be mounted: {os.strerror(number)}")


class Entry:
    """One flow's progress. One thread writes it at a time."""

    def __init__(self, words: memoryview, fixed: int, chunk: int) -> None:
        self._words = words
        self._fixed = fixed  # the group; the phase is in the upper half of the same word
        self._iteration = self._done = self._before = 0
        words[_CHUNK] = chunk

    def update(self, iteration: int, phase: Phase | int, total: int, ready: int, done: int) -> None:
        """Say how far the flow is: of the `total` bytes of this iteration, `ready` may be sent by now and
        `done` are sent (received). A total that is not known yet is what is ready.
        """
        if iteration != self._iteration:
            self._before += self._done
            self._iteration = iteration
        self._done = done
        words = self._words
        sequence = words[0] + 1
        words[0] = sequence
        words[_PHASE] = self._fixed | phase << 32
        words[_ITERATION] = iteration
        words[_TOTAL] = total
        words[_READY] = ready
        words[_DONE] = done
        words[_CARRIED] = self._before + done
        words[_UPDATED] = time.monotonic_ns()
        words[0] = sequence + 1

    def forget(self) -> None:
        """The flow's connection is closed: the entry is no flow's any more, and is not used again."""
        words = self._words
        sequence = words[0] + 1
        words[0] = sequence
        words[_KEY] &= ~_DIRECTION
        words[0] = sequence + 1

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()


class Publisher:
    """The flows of one process. Use it as a context manager; the file goes when the process does."""

    def __init__(
        self, job: str, *, directory: Path | None = None, name: str | None = None, capacity: int = CAPACITY
    ) -> None:
        """Make `NAME.progress` in `directory` (default: that of the environment), for `capacity` flows.

        The default name is the job, the process id and a random number: processes of two containers may have
        the same id.

        Raises BadInput for a capacity or a name that cannot be, EntrainError where the file cannot be made.
        """
        if not 0 < capacity <= CAPACITY_MAX:
            raise BadInput(f"capacity {capacity}: must be from 1 to {CAPACITY_MAX}")
        self._pid = os.getpid()
        name = name or f"{job}-{self._pid}-{secrets.token_hex(4)}"
        if "/" in name or name.startswith("."):
            raise BadInput(f"name {name!r}: must be a file name")
        directory = directory or progress_directory()
        self.path = directory / f"{name}{SUFFIX}"
        size = pace_offset(capacity) + PACE.size + STARTS.size
        header = Header(MAGIC, VERSION, capacity, 0, self._pid, _netns_cookie(), job.encode()[:JOB_BYTES])
        try:
            if not directory.is_dir():
                make_directory(directory)
            self._file, self._memory = _published(self.path, HEADER.pack(*header).ljust(size, b"\0"))
        except OSError as error:
            raise EntrainError(
                f"{self.path}: cannot publish progress there: {error.strerror}; set {DIRECTORY_VARIABLE}"
            ) from error
        self._view = memoryview(self._memory)
        self._capacity = capacity
        self._entries: list[Entry] = []
        self._words = self._view[pace_offset(capacity) :].cast("Q")

    def pace(self, now_ns: int) -> PaceFields | None:
        """The pace that the agent has set, or None: none, one that is being written, or one that has expired
        by `now_ns`.
        """
        words = self._words
        for _ in range(_ATTEMPTS):
            found = PaceFields._make(words[n] for n in _PACE_WORDS)
            if found.sequence % 2 == 0 and found.sequence == words[0]:
                return found if found.period_ns and now_ns <= found.until_ns else None
        return None

    def started(self, starts: StartFields) -> None:
        """Say how iterations have started so far; `starts.sequence` is not used."""
        words = self._words
        first = _STARTS_WORDS[0]
        sequence = words[first] + 1
        words[first] = sequence
        for place, value in zip(_STARTS_WORDS[1:], starts[1:], strict=True):
            words[place] = value & _U64  # negative values as in two's complement
        words[first] = sequence + 1

    def flow(
        self, flow: Address, direction: Direction | int, role: int = 0, group: int = 0, chunk: int = 0
    ) -> Entry:
        """An entry for `flow`, which depends on the other flows of this process in `group` as `role` says
        (schedulers.slots.roles.Role); `chunk` is the lag that a ring allows, or how much
        a parameter server sums up at once (0: unknown), in bytes.

        Raises BadInput when all entries are in use.
        """
        number = len(self._entries)
        if number == self._capacity:
            raise BadInput(f"{self.path}: no room for more than {number} flows; give a larger capacity")
        begin = HEADER.size + number * ENTRY.size
        source, source_port, destination, destination_port, protocol = flow
        fields = Fields(
            0,
            socket.inet_aton(source),
            socket.inet_aton(destination),
            source_port,
            destination_port,
            protocol,
            direction,
            role,
            group,
            *[0] * 8,
        )
        self._memory[begin : begin + ENTRY.size] = ENTRY.pack(*fields)
        entry = Entry(self._view[begin : begin + ENTRY.size].cast("Q"), group, chunk)
        self._entries.append(entry)
        entry.update(0, Phase.COMPUTING, 0, 0, 0)
        struct.pack_into("<I", self._memory, 16, number + 1)  # `used`: from now on it is read
        return entry

    def close(self) -> None:
        """Remove the file; a child of the process that has made it leaves it there."""
        if self._file < 0:  # closed already
            return
        for entry in self._entries:
            entry.close()
        self._words.release()
        self._view.release()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._memory.close()
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _published(path: Path, content: bytes) -> tuple[int, mmap.mmap]:
    """A new file: its descriptor, which keeps it locked, and its memory.

    It appears whole and locked: the agent never sees one without its header or its lock. Others can write in
    the directory, so the draft has a random name and is opened with O_EXCL and O_NOFOLLOW (`mkstemp`): no
    file and no link that somebody has put there is ever opened.
    """
    file, name = tempfile.mkstemp(prefix=f".{path.stem}.", dir=path.parent)
    draft = Path(name)
    try:
        with open(file, "wb", closefd=False) as whole:
            whole.write(content)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        memory = mmap.mmap(file, len(content))
        draft.rename(path)
    except OSError:
        os.close(file)
        draft.unlink()
        raise
    return file, memory


def _netns_cookie() -> int:
    """The kernel's number of the present network namespace; 0 where it has none (before Linux 5.14)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
    return 0
