"""The monitoring block (flow-scheduling paper, III-A): how far the training processes of a host are.

Processes publish in files of shared memory (`wire.progress`, progress.h). Any user may write them, so
they are untrusted: a file is read and never mapped, which makes a file that shrinks harmless; entries are
validated; and what a user's files cost per reading is limited (`hostbpf.scheduling.quota`), root's excepted.

A process lives as long as its file is locked. The kernel says who holds the lock, so that the number in the
file, which means nothing in another PID namespace, is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import resource
import select
import socket
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ebpf.namespaces import netns_identity, netns_path
from hostbpf.flow import netns_cookie
from hostbpf.rates.sockets import SocketDiag
from hostbpf.scheduling import quota
from hostbpf.scheduling.quota import ROOT, Quota, Quotas
from machine.text import escaped
from schedulers.slots.roles import Role
from wire.flow import Flow
from wire.progress import (
    CAPACITY_MAX,
    ENTRY,
    HEADER,
    MAGIC,
    PACE,
    STARTS,
    SUFFIX,
    VERSION,
    Direction,
    Entry,
    Header,
    Phase,
    Publisher,
    make_directory,
    pace_offset,
    progress_directory,
)

__all__ = ["Direction", "Entry", "FlowProgress", "Monitor", "Phase", "Publisher", "Role"]

BYTES_MAX = 1 << 50
FILES_PER_USER = 128
"""Processes of one user that are read."""
FLOWS_PER_USER = 256
"""Entries that are read, over all files of a user other than root."""
SPARED = 32
"""Descriptors of this process that files of progress do not take: the agent goes on answering."""
LOOKED_AT = 1024
"""Names in the directory that one reading looks at; the next reading continues there."""
_RECHECKED = 64
"""Readings after which an entry that was refused for its socket is checked again."""
_ATTEMPTS = 50
"""Readings of an entry that is being written; three of its 128 bytes take two microseconds."""
_TRUSTED = 64
"""Readings after which the directory is looked at though the kernel has told of no change: of a directory
further up, of a file's size; most of a second's."""
_CHANGES = 0xFC0  # inotify(7): entries that are made, moved or deleted, and the same of the directory itself
_EVENTS_MAX = 65536  # bytes
_USED = 16  # where it stands in the header
_DIRECTION = 21  # where it stands in an entry
_CLAIM = slice(8, _DIRECTION + 1)  # a flow and its direction
_FLOCK = struct.Struct("hhqqi4x")  # struct flock (fcntl(2))
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class FlowProgress:
    """One flow that a process of this host sends or receives.

    Of the iteration's `total` bytes, `ready` may be sent by now and `done` are sent (received); `carried` is
    what the flow has carried in all iterations. Flows of one `pid` and `group` depend on each other as their
    roles say; `chunk` is the lag of a ring, or what a parameter server sums up at once (0: unknown), bytes.
    `updated_ns` is CLOCK_MONOTONIC.
    """

    job: str
    pid: int
    flow: Flow
    direction: Direction
    role: Role
    group: int
    phase: Phase
    iteration: int
    total: int
    ready: int
    done: int
    carried: int
    chunk: int
    updated_ns: int


class Process(NamedTuple):
    """A process of this host that publishes: its job, its user, its number here, and its file, which the
    monitor has open for reading until the process ends or the monitor is closed.
    """

    job: str
    uid: int
    pid: int
    fd: int
    capacity: int


class _Refused(Exception):
    """A file or an entry is not believed; the message is the reason under which it is counted."""


class _Postponed(Exception):
    """The user's quota is used up: the rest is for the next reading."""


_Claim = tuple[bytes, FlowProgress]
"""What an entry says; the bytes name the flow and its direction."""
_NO_SOCKET = "another user's flow"


class _File:
    """An open file of a process of this host, and the process."""

    def __init__(self, fd: int, pid: int, process: int, header: Header, uid: int) -> None:
        self.fd, self.pid, self.process, self.uid = fd, pid, process, uid
        self.capacity = header.capacity
        self.job = escaped(header.job.rstrip(b"\0").decode(errors="replace"))
        self.count = 0  # of its entries that are read
        self.last: dict[int, _Claim] = {}  # by entry
        self.seen: dict[int, bytes] = {}  # what stands there, as far as it is judged
        self.refused: dict[int, str] = {}  # why that is refused
        self.owned: dict[int, Flow] = {}  # entry: the flow that was found to be the user's
        self.recheck_in = 0  # readings; 0: nothing was refused for its socket
        self.data: bytes | None = None  # the header and those entries; None if one has to be read again
        self.said: list[_Claim] = []  # what they say

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return HEADER.size + self.count * ENTRY.size

    def intact(self) -> bool:
        """Whether it still has a name and its size."""
        now = os.fstat(self.fd)
        return now.st_nlink > 0 and now.st_size >= HEADER.size + self.capacity * ENTRY.size

    def close(self) -> None:
        """Let go of both."""
        os.close(self.fd)
        os.close(self.process)


class _Known(NamedTuple):
    """A name in the directory that was looked at, whether it can be read or not."""

    inode: int
    uid: int


class Monitor:
    """Reads the progress of one host's flows.

    `refused` counts by reason what was left out: files once each, entries each time they are read.
    """

    def __init__(self, directory: Path | None = None, netns: str | None = None) -> None:
        """Read in `directory` (default: that of the environment), which is made if it does not exist, what
        processes in network namespace `netns` (a name or path; None: the present one) publish.
        """
        self._directory = directory or progress_directory()
        make_directory(self._directory)
        self._cookie = netns_cookie(netns)
        self._netns = netns_identity(netns_path(netns or "/proc/thread-self/ns/net"))
        self._diag = SocketDiag(netns)
        self._known: dict[str, _Known] = {}
        self._files: dict[str, _File] = {}  # ours alone
        self._by_user: Counter[int] = Counter()  # known names
        self._flows: Counter[int] = Counter()  # entries that are read, by user
        self._late: set[str] = set()  # files that the quota left for the next reading
        self._events = select.poll()  # processes that end, and changes of the directory
        # -1: the user has no more of them, and the directory is looked at each time.
        self._changes: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._changes >= 0:
            self._events.register(self._changes, select.POLLIN)
        self._trusted = 0  # readings for which the directory need not be looked at
        self._scan: os._ScandirIterator[str] | None = None  # a look that is not finished
        self._told = False  # whether the kernel tells of changes since that look began
        self._postponed = False  # whether it left something to the next one
        self.refused: Counter[str] = Counter()

    def read(self) -> list[FlowProgress]:
        """The progress of all flows now. Files of processes that are dead are removed."""
        quotas = Quotas(self._by_user.keys() - {ROOT})
        events = dict(self._events.poll(0))
        if self._trusted and self._changes not in events:
            self._trusted -= 1
        else:
            self._look(quotas)
            events = dict(self._events.poll(0))
        said: list[_Claim] = []
        late, self._late = self._late, set()
        files = list(self._files.items())
        if late:
            files.sort(key=lambda item: item[0] not in late)
        for name, file in files:
            if file.process in events:
                self._remove(name)
                continue
            try:
                with quotas.of(file.uid) as left:
                    said += self._heard(name, file, left)
            except _Refused as reason:
                self._forget(name)
                self.refused[str(reason)] += 1
        found = dict(said)
        if len(found) == len(said):
            return list(found.values())
        self.refused["claimed twice"] += len(said) - len(found)
        claims = Counter(claim for claim, _ in said)
        return [each for claim, each in said if claims[claim] == 1]  # the others are not believed

    def processes(self) -> list[Process]:
        """The processes that the last reading has found, with a file that has room for a pace."""
        return [
            Process(file.job, file.uid, file.pid, file.fd, file.capacity)
            for file in self._files.values()
            if os.fstat(file.fd).st_size >= pace_offset(file.capacity) + PACE.size + STARTS.size
        ]

    def _look(self, quotas: Quotas) -> None:
        """Take in what is new in the directory, and forget what is gone."""
        self._trusted = 0
        if self._scan is None:
            self._told = self._watch()
            self._forget_gone()
            self._scan = os.scandir(self._directory)
            self._postponed = False
        looked_at = 0
        for entry in islice(self._scan, LOOKED_AT):
            looked_at += 1
            if entry.name not in self._known and entry.name.endswith(SUFFIX):
                self._take_in(entry, quotas)
        if looked_at < LOOKED_AT:
            self._end_scan()
            if self._told and not self._postponed:
                self._trusted = _TRUSTED

    def _end_scan(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _forget_gone(self) -> None:
        for name, known in list(self._known.items()):
            file = self._files.get(name)
            try:
                there = (self._directory / name).lstat().st_ino == known.inode
            except OSError:
                there = False
            if not there or (file and not file.intact()):
                self._forget(name)

    def _watch(self) -> bool:
        """Whether the kernel tells what changes in the directory from now on."""
        if self._changes < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._changes, _EVENTS_MAX)  # what it has told is looked at now
        path = os.fsencode(self._directory)
        return bool(_LIBC.inotify_add_watch(self._changes, path, _CHANGES) >= 0)

    def _take_in(self, entry: os.DirEntry[str], quotas: Quotas) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it has just gone
            return
        uid = status.st_uid
        if self._by_user[uid] >= FILES_PER_USER:
            self.refused["too many files"] += 1
            return
        file = None
        try:
            with quotas.of(uid) as left:
                if not left.spend(quota.OPEN):
                    raise _Postponed
                file = self._open(entry.name, uid)
        except _Postponed:
            self._postponed = True
            return
        except _Refused as reason:
            self.refused[str(reason)] += 1
        self._known[entry.name] = _Known(status.st_ino, uid)
        self._by_user[uid] += 1
        if file:
            self._files[entry.name] = file

    def _open(self, name: str, uid: int) -> _File | None:
        """The file, if it is of this host. Removes what a dead process left."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._directory / name, flags)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise self._too_many() from None
            raise _Refused("cannot be opened") from None
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARED:  # all lower ones are taken
                raise self._too_many()
            status = os.fstat(fd)
            if status.st_uid != uid:  # it is another one already
                raise _Refused("cannot be opened")
            header = _header(fd, status)
            publisher = _publisher(fd)
            if publisher is None:
                self._unlink(name)
                return None
            pid, process = publisher
            stack.callback(os.close, process)
            with contextlib.suppress(OSError):  # the process has just ended
                if uid != ROOT and Path(f"/proc/{pid}").stat().st_uid != uid:
                    raise _Refused("another user's process")
                if self._is_here(pid, header, uid):
                    stack.pop_all()
                    self._events.register(process, select.POLLIN)
                    return _File(fd, pid, process, header, uid)
            return None

    def _too_many(self) -> _Postponed:
        """A file waits until this process may open it."""
        self.refused["too many open files: raise `ulimit -n` of the agent"] += 1
        return _Postponed()

    def _is_here(self, pid: int, header: Header, uid: int) -> bool:
        """Whether the process is in this host's namespace; what users say of it is not believed."""
        if uid == ROOT and header.netns:
            return header.netns == self._cookie
        return netns_identity(Path(f"/proc/{pid}/ns/net")) == self._netns

    def _heard(self, name: str, file: _File, left: Quota) -> list[_Claim]:
        """What the entries of a file say. Mostly it says the same as before, and one reading is all that it
        takes: bytes that were found whole once are whole, and what was refused once is refused.
        """
        data = os.pread(file.fd, file.size, 0)
        if file.recheck_in:
            file.recheck_in -= 1
            if not file.recheck_in:
                file.data = None
                file.seen = {n: each for n, each in file.seen.items() if file.refused.get(n) != _NO_SOCKET}
        if data == file.data:
            self.refused.update(file.refused.values())
            return file.said
        if len(data) < file.size:
            raise _Refused("truncated")
        file.data = None
        if not left.spend(quota.READ):
            self._late.add(name)
            return file.said
        self._count_entries(file, data)
        entries = _entries(file, data, left)
        file.said = list(self._said(file, entries, left))
        if left.exhausted:
            self._late.add(name)
        elif None not in entries:
            file.data = data[: HEADER.size] + b"".join(each for each in entries if each)
        return file.said

    def _count_entries(self, file: _File, data: bytes) -> None:
        """Find out how many entries are read: those in use, as far as the user may have so many."""
        used = min(int.from_bytes(data[_USED : _USED + 4], "little"), file.capacity)
        if file.uid != ROOT:
            room = FLOWS_PER_USER - self._flows[file.uid] + file.count
            if used > room:
                self.refused["too many flows"] += 1
            used = min(used, room)
        self._flows[file.uid] += used - file.count
        file.count = used

    def _said(self, file: _File, entries: list[bytes | None], left: Quota) -> Iterator[_Claim]:
        """What the entries say; of those that the quota leaves out, what they said last."""
        for number, data in enumerate(entries):
            if data is None:
                self.refused["never stands still"] += 1
            elif file.seen.get(number) != data:
                with contextlib.suppress(_Postponed):
                    self._judge(file, number, data, left)
            if data is not None and number in file.refused:
                self.refused[file.refused[number]] += 1
            elif number in file.last and (data is None or data[_DIRECTION]):
                yield file.last[number]

    def _judge(self, file: _File, number: int, data: bytes, left: Quota) -> None:
        """Keep what an entry says, or why it is refused."""
        if not left.spend(quota.READ):
            raise _Postponed
        reason = ""
        if data[_DIRECTION]:
            try:
                file.last[number] = data[_CLAIM], self._checked(file, number, data, left)
            except _Refused as refusal:
                reason = str(refusal)
        file.seen[number] = data
        file.refused.pop(number, None)
        if reason:
            file.refused[number] = reason
        if reason == _NO_SOCKET and not file.recheck_in:
            file.recheck_in = _RECHECKED

    def _checked(self, file: _File, number: int, data: bytes, left: Quota) -> FlowProgress:
        """What an entry in use says, if that can be; raises _Refused."""
        (
            _, source, destination, source_port, destination_port, protocol, direction, role, group,
            phase, iteration, total, ready, done, carried, chunk, updated_ns,
        ) = ENTRY.unpack(data)  # fmt: skip
        if direction not in _DIRECTIONS or role not in _ROLES or phase not in _PHASES:
            raise _Refused("unknown direction, role or phase")
        if max(total, carried, chunk, iteration) >= BYTES_MAX:
            raise _Refused("beyond 2^50")
        if not done <= ready <= total:
            raise _Refused("more done than ready, or more ready than there is")
        if carried < done:
            raise _Refused("less carried than done")
        if number in file.last:
            _, last = file.last[number]
            if iteration < last.iteration or carried < last.carried:
                raise _Refused("going backwards")
        flow = _flow(source, destination, source_port, destination_port, protocol)
        if file.uid != ROOT and file.owned.get(number) != flow:
            if not left.spend(quota.LOOKUP):
                raise _Postponed
            if not self._is_flow_of(flow, _DIRECTIONS[direction], file.uid):
                raise _Refused(_NO_SOCKET)
            file.owned[number] = flow
        progress = object.__new__(FlowProgress)  # without a call per field: there is one for each change
        progress.__dict__.update(
            job=file.job,
            pid=file.pid,
            flow=flow,
            direction=_DIRECTIONS[direction],
            role=_ROLES[role],
            group=group,
            phase=_PHASES[phase],
            iteration=iteration,
            total=total,
            ready=ready,
            done=done,
            carried=carried,
            chunk=chunk,
            updated_ns=updated_ns,
        )
        return progress

    def _is_flow_of(self, flow: Flow, direction: Direction, uid: int) -> bool:
        """Whether a socket of the user's on this host sends, or receives, `flow`."""
        if flow.protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            return False
        found = self._diag.find(flow, received=direction is Direction.RECEIVED)
        return found is not None and found.uid == uid

    def _forget(self, name: str) -> None:
        uid = self._known.pop(name).uid
        self._by_user[uid] -= 1
        self._trusted = 0  # if it is still there, it is looked at anew
        file = self._files.pop(name, None)
        if file:
            self._flows[file.uid] -= file.count
            self._events.unregister(file.process)
            file.close()
        for counter in (self._by_user, self._flows):
            if not counter[uid]:
                del counter[uid]

    def _remove(self, name: str) -> None:
        self._unlink(name)
        self._forget(name)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def close(self) -> None:
        """Close all files."""
        for name in list(self._known):
            self._forget(name)
        self._end_scan()
        self._diag.close()
        if self._changes >= 0:
            self._events.unregister(self._changes)
            os.close(self._changes)
            self._changes = -1

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_DIRECTIONS = {int(each): each for each in Direction}
_ROLES = {int(each): each for each in Role}
_PHASES = {int(each): each for each in Phase}


@functools.lru_cache(8192)
def _flow(source: bytes, destination: bytes, source_port: int, destination_port: int, protocol: int) -> Flow:
    return Flow(
        socket.inet_ntoa(source), source_port, socket.inet_ntoa(destination), destination_port, protocol
    )


def _header(fd: int, status: os.stat_result) -> Header:
    """The header of a file; raises _Refused."""
    data = os.pread(fd, HEADER.size, 0) if stat.S_ISREG(status.st_mode) else b""
    if len(data) < HEADER.size:
        raise _Refused("no progress file")
    header = Header._make(HEADER.unpack(data))
    if header.magic != MAGIC:
        raise _Refused("no progress file")
    if header.version == 1:
        raise _Refused("version 1, without a lock")
    if header.version != VERSION:
        raise _Refused("another version")
    if not 0 < header.capacity <= CAPACITY_MAX:
        raise _Refused("unlikely capacity")
    if status.st_size < HEADER.size + header.capacity * ENTRY.size:
        raise _Refused("truncated")
    return header


def _publisher(fd: int) -> tuple[int, int] | None:
    """The process that keeps the file locked: its number, and a descriptor of it (pidfd) that becomes
    readable when it ends. None where nobody does: the publisher has ended.

    Raises _Refused where the process cannot be seen from the present PID namespace.
    """
    pid = _holder(fd)
    if pid is None:
        return None
    if pid <= 0:
        raise _Refused("a process that the agent's PID namespace does not show")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError:
        raise _Refused("cannot be opened") from None
    if _holder(fd) == pid:  # else it has just ended, and another process may have its number
        return pid, process
    os.close(process)
    return None


def _holder(fd: int) -> int | None:
    """The process that holds a record lock on the file, by its number in the present PID namespace; 0 where
    it has none there, None where nobody holds one.
    """
    anybody = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, anybody))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _entries(file: _File, data: bytes, left: Quota) -> list[bytes | None]:
    """The entries in use as they were at one moment each; None for one that was always being written.

    `data` is a reading of the file from its beginning: an entry in it that is as it was seen is whole, and
    for the others it is the first of three readings.
    """
    if len(data) < file.size:
        data = _read(file.fd, file.size, 0)
    places = range(HEADER.size, file.size, ENTRY.size)
    found: list[bytes | None] = [data[at : at + ENTRY.size] for at in places]
    changed = [number for number, each in enumerate(found) if file.seen.get(number) != each]
    if not changed:
        return found
    first, end = changed[0], changed[-1] + 1
    begin = places[first]
    found[first:end] = _whole(file.fd, begin, data[begin : HEADER.size + end * ENTRY.size])
    for number in range(first, end):
        for _ in range(_ATTEMPTS):
            if found[number] is not None or not left.spend(quota.READ):
                break
            [found[number]] = _whole(file.fd, places[number], _read(file.fd, ENTRY.size, places[number]))
    return found


def _whole(fd: int, begin: int, before: bytes) -> list[bytes | None]:
    """The entries from `begin` on, of which `before` is a reading; None for one that was being written.

    It is read three times: within one reading the kernel copies in any order, so only what lies between two
    equal, even sequence numbers is whole.
    """
    size = len(before)
    data, after = _read(fd, size, begin), _read(fd, size, begin)
    return [
        data[at : at + ENTRY.size]
        if before[at : at + 8] == data[at : at + 8] == after[at : at + 8] and not data[at] % 2
        else None
        for at in range(0, size, ENTRY.size)
    ]


def _read(fd: int, size: int, begin: int) -> bytes:
    """What stands there; zeros (not in use) for what lies beyond the file's end."""
    return os.pread(fd, size, begin).ljust(size, b"\0")
