"""The monitoring block (flow-scheduling paper, III-A): how far the training processes of a host are.

Processes publish in files of shared memory (`machine.progress`, progress.h). What stands there is theirs:
it is read without being mapped, so that a file that shrinks harms nobody, and nothing in it is believed that
cannot be.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebpf import EbpfError
from hostbpf.slots import Flow, netns_cookie
from machine.progress import (
    CAPACITY_MAX,
    ENTRY,
    HEADER,
    MAGIC,
    SUFFIX,
    VERSION,
    Direction,
    Entry,
    Header,
    Phase,
    Publisher,
    make_directory,
    progress_directory,
)
from machine.record import process_start
from schedulers.roles import Role

__all__ = ["Direction", "Entry", "FlowProgress", "Monitor", "Phase", "Publisher", "Role"]

BYTES_MAX = 1 << 50
FILES_MAX = 1024
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
_ROOT = 0
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class FlowProgress:
    """One flow that a process of this host sends or receives.

    Of the iteration's `total` bytes, `ready` may be sent by now and `done` are sent (received); `carried` is
    what the flow has carried in all iterations. Flows of one `pid` and `group` depend on each other as their
    roles say; `chunk` is the lag of a ring, in bytes. `updated_ns` is CLOCK_MONOTONIC.
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


class _Refused(Exception):
    """What stands in a file or an entry cannot be; the message is the reason under which it is counted."""


_Claim = tuple[bytes, FlowProgress]
"""What an entry says; the bytes name the flow and its direction."""


class _File:
    """An open file of a process of this host, and the process."""

    def __init__(self, fd: int, process: int, header: Header, uid: int) -> None:
        self.fd, self.process, self.uid = fd, process, uid
        self.pid, self.capacity = header.pid, header.capacity
        self.job = header.job.rstrip(b"\0").decode(errors="replace")
        self.last: dict[int, _Claim] = {}  # by entry
        self.seen: dict[int, bytes] = {}  # what stands there if that is it, or if it is not in use
        self.owned: dict[int, Flow] = {}  # entry: the flow that was found to be the process's
        self.size = HEADER.size  # as far as its entries are in use
        self.data: bytes | None = None  # the header and those entries; None if one of them is refused
        self.said: list[_Claim] = []  # what they say

    def intact(self) -> bool:
        """Whether it still has a name and its size."""
        now = os.fstat(self.fd)
        return now.st_nlink > 0 and now.st_size >= HEADER.size + self.capacity * ENTRY.size

    def close(self) -> None:
        """Let go of both."""
        os.close(self.fd)
        os.close(self.process)


class Monitor:
    """Reads the progress of one host's flows.

    `refused` counts by reason what was left out: files once each, entries each time they are read.
    """

    def __init__(self, directory: Path | None = None, cookie: int | None = None) -> None:
        """Read in `directory` (default: that of the environment), which is made if it is not there, what
        processes in the network namespace with `cookie` (default: the present one) publish."""
        self._directory = directory or progress_directory()
        make_directory(self._directory)
        self._cookie = netns_cookie() if cookie is None else cookie
        self._known: dict[str, int] = {}  # name: inode, of all files
        self._files: dict[str, _File] = {}  # ours alone
        self._events = select.poll()  # processes that end, and changes of the directory
        # -1: the user has no more of them, and the directory is looked at each time.
        self._changes: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._changes >= 0:
            self._events.register(self._changes, select.POLLIN)
        self._trusted = 0  # readings for which the directory need not be looked at
        self.refused: Counter[str] = Counter()

    def read(self) -> list[FlowProgress]:
        """The progress of all flows now. Files of processes that are dead are removed."""
        events = dict(self._events.poll(0))
        if self._trusted and self._changes not in events:
            self._trusted -= 1
        else:
            self._look()
            events = dict(self._events.poll(0))
        said: list[_Claim] = []
        for name, file in list(self._files.items()):
            if file.process in events:
                self._remove(name)
                continue
            try:
                said += self._heard(file)
            except _Refused as reason:
                self._forget(name)
                self.refused[str(reason)] += 1
        found = dict(said)
        if len(found) == len(said):
            return list(found.values())
        self.refused["claimed twice"] += len(said) - len(found)
        claims = Counter(claim for claim, _ in said)
        return [each for claim, each in said if claims[claim] == 1]  # the others are not believed

    def _look(self) -> None:
        """Take in what is new in the directory, and forget what is gone."""
        self._trusted = 0
        told = self._watch()
        with os.scandir(self._directory) as entries:
            there = {each.name: each.inode() for each in entries if each.name.endswith(SUFFIX)}
        for name, inode in list(self._known.items()):
            file = self._files.get(name)
            if there.get(name) != inode or (file and not file.intact()):
                self._forget(name)
        for name, inode in there.items():
            if name in self._known:
                continue
            if len(self._known) >= FILES_MAX:
                self.refused["too many files"] += 1
                return
            self._take_in(name, inode)
        if told:
            self._trusted = _TRUSTED

    def _watch(self) -> bool:
        """Whether the kernel tells what changes in the directory from now on."""
        if self._changes < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._changes, _EVENTS_MAX)  # what it has told is looked at now
        path = os.fsencode(self._directory)
        return bool(_LIBC.inotify_add_watch(self._changes, path, _CHANGES) >= 0)

    def _take_in(self, name: str, inode: int) -> None:
        file = None
        try:
            file = self._open(name)
        except _Refused as reason:
            self.refused[str(reason)] += 1
        self._known[name] = inode
        if file:
            self._files[name] = file

    def _open(self, name: str) -> _File | None:
        """The file, if it is of this host. Removes what a dead process left."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._directory / name, flags)
        except OSError:
            raise _Refused("cannot be opened") from None
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            status = os.fstat(fd)
            header = _header(fd, status)
            process = _process(header)
            if process is None:
                self._unlink(name)
                return None
            stack.callback(os.close, process)
            with contextlib.suppress(OSError):  # the process has just ended
                if status.st_uid != _ROOT and Path(f"/proc/{header.pid}").stat().st_uid != status.st_uid:
                    raise _Refused("another user's process")
                if self._is_here(header, status.st_uid):
                    stack.pop_all()
                    self._events.register(process, select.POLLIN)
                    return _File(fd, process, header, status.st_uid)
            return None

    def _is_here(self, header: Header, uid: int) -> bool:
        """Whether the process is in this host's namespace; what users say of it is not believed."""
        if uid == _ROOT and header.netns:
            return header.netns == self._cookie
        try:
            return netns_cookie(f"/proc/{header.pid}/ns/net") == self._cookie
        except EbpfError:
            return False

    def _heard(self, file: _File) -> list[_Claim]:
        """What the entries of a file say. Mostly it says the same as before, and one reading is all that it
        takes: bytes that were found whole once are whole."""
        data = os.pread(file.fd, file.size, 0)
        if data != file.data:
            if len(data) < file.size:
                raise _Refused("truncated")
            entries = _entries(file, data)
            file.size = HEADER.size + len(entries) * ENTRY.size
            file.data = b"".join([data[: HEADER.size], *(each or b"" for each in entries)])
            file.said = list(self._said(file, entries))
        return file.said

    def _said(self, file: _File, entries: list[bytes | None]) -> Iterator[_Claim]:
        for number, data in enumerate(entries):
            if data is None:
                self._refuse(file, "never stands still")
                if number in file.last:  # its writer lost the processor: what it said last stands
                    yield file.last[number]
            elif not data[_DIRECTION]:
                file.seen[number] = data
            elif file.seen.get(number) == data:
                yield file.last[number]
            else:
                try:
                    progress = self._checked(file, number, data)
                except _Refused as reason:
                    self._refuse(file, str(reason))
                    continue
                file.seen[number] = data
                file.last[number] = data[_CLAIM], progress
                yield file.last[number]

    def _refuse(self, file: _File, reason: str) -> None:
        """Count what an entry says, at the next reading again."""
        self.refused[reason] += 1
        file.data = None

    def _checked(self, file: _File, number: int, data: bytes) -> FlowProgress:
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
        if file.uid != _ROOT and file.owned.get(number) != flow:
            if not _is_flow_of(flow, _DIRECTIONS[direction], file.pid, file.uid):
                raise _Refused("another user's flow")
            file.owned[number] = flow
        return FlowProgress(
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

    def _forget(self, name: str) -> None:
        del self._known[name]
        self._trusted = 0  # if it is still there, it is looked at anew
        file = self._files.pop(name, None)
        if file:
            self._events.unregister(file.process)
            file.close()

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
    if header.version != VERSION:
        raise _Refused(f"version {header.version}")
    if not 0 < header.capacity <= CAPACITY_MAX:
        raise _Refused("unlikely capacity")
    if status.st_size < HEADER.size + header.capacity * ENTRY.size:
        raise _Refused("truncated")
    return header


def _process(header: Header) -> int | None:
    """A descriptor of the process (pidfd), readable when it ends; None: it has. Start 0 stands for any."""
    try:
        process = os.pidfd_open(header.pid)
    except (OSError, OverflowError):
        return None
    start = process_start(header.pid)
    if start is not None and header.start in (0, int(start)):
        return process
    os.close(process)
    return None


def _entries(file: _File, data: bytes) -> list[bytes | None]:
    """The entries in use as they were at one moment each; None for one that was always being written.

    `data` is a reading of the file from its beginning: an entry in it that is as it was seen is whole, and
    for the others it is the first of three readings.
    """
    count = min(int.from_bytes(data[_USED : _USED + 4], "little"), file.capacity)
    size = HEADER.size + count * ENTRY.size
    if len(data) < size:
        data = _read(file.fd, size, 0)
    places = range(HEADER.size, size, ENTRY.size)
    found: list[bytes | None] = [data[at : at + ENTRY.size] for at in places]
    changed = [number for number, each in enumerate(found) if file.seen.get(number) != each]
    if not changed:
        return found
    first, end = changed[0], changed[-1] + 1
    begin = places[first]
    found[first:end] = _whole(file.fd, begin, data[begin : HEADER.size + end * ENTRY.size])
    for number in range(first, end):
        for _ in range(_ATTEMPTS):
            if found[number] is not None:
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


def _is_flow_of(flow: Flow, direction: Direction, pid: int, uid: int) -> bool:
    """Whether the kernel has a socket of the user's for `flow` in the process's network namespace."""
    table = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}.get(flow.protocol)
    if table is None:
        return False
    ends = [
        f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}:{port:04X}"
        for address, port in ((flow.source, flow.source_port), (flow.destination, flow.destination_port))
    ]
    local, remote = ends if direction is Direction.SENT else ends[::-1]
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{table}").open() as lines:
        for line in lines:
            fields = line.split()
            if fields[1] == local and fields[2] == remote:
                return fields[7] == str(uid)
    return False
