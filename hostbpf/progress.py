"""The monitoring block (flow-scheduling paper, III-A): how far the training processes of a host are.

Processes publish in files of shared memory (`machine.progress`, progress.h). What stands there is theirs:
it is read without being mapped, so that a file that shrinks harms nobody, and nothing in it is believed that
cannot be.
"""

from __future__ import annotations

import contextlib
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
    Fields,
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
_USED = 16  # where it stands in the header
_ROOT = 0


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


class _File:
    """An open file of a process of this host, and the process."""

    def __init__(self, fd: int, process: int, header: Header, uid: int) -> None:
        self.fd, self.process, self.header, self.uid = fd, process, header, uid
        self.last: dict[int, FlowProgress] = {}  # by entry
        self.seen: dict[int, bytes] = {}  # what stood there then
        self.owned: dict[int, Flow] = {}  # entry: the flow that was found to be the process's

    def intact(self) -> bool:
        """Whether it still has a name and its size."""
        now = os.fstat(self.fd)
        return now.st_nlink > 0 and now.st_size >= HEADER.size + self.header.capacity * ENTRY.size

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
        self._files: dict[str, tuple[int, _File | None]] = {}  # name: inode, None for what is not ours
        self._processes = select.poll()
        self.refused: Counter[str] = Counter()

    def read(self) -> list[FlowProgress]:
        """The progress of all flows now. Files of processes that are dead are removed."""
        self._look()
        dead = {descriptor for descriptor, _ in self._processes.poll(0)}
        found: dict[tuple[Flow, Direction], FlowProgress | None] = {}
        for name, (_, file) in list(self._files.items()):
            if file is None:
                continue
            if not file.intact():
                self._forget(name)
                self.refused["truncated"] += 1
                continue
            if file.process in dead:
                self._remove(name)
                continue
            for each in self._flows(file):
                key = each.flow, each.direction
                if key in found:
                    self.refused["claimed twice"] += 1
                    found[key] = None  # neither is believed
                else:
                    found[key] = each
        return [each for each in found.values() if each is not None]

    def _look(self) -> None:
        """Take in what is new in the directory, and forget what is gone."""
        with os.scandir(self._directory) as entries:
            there = {each.name: each.inode() for each in entries if each.name.endswith(SUFFIX)}
        for name, (inode, file) in list(self._files.items()):
            if there.get(name) != inode or (file and not os.fstat(file.fd).st_nlink):
                self._forget(name)
        for name, inode in there.items():
            if name in self._files:
                continue
            if len(self._files) >= FILES_MAX:
                self.refused["too many files"] += 1
                return
            try:
                self._files[name] = inode, self._open(name)
            except _Refused as reason:
                self._files[name] = inode, None
                self.refused[str(reason)] += 1

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
                self._remove(name)
                return None
            stack.callback(os.close, process)
            with contextlib.suppress(OSError):  # the process has just ended
                if status.st_uid != _ROOT and Path(f"/proc/{header.pid}").stat().st_uid != status.st_uid:
                    raise _Refused("another user's process")
                if self._is_here(header, status.st_uid):
                    stack.pop_all()
                    self._processes.register(process, select.POLLIN)
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

    def _flows(self, file: _File) -> Iterator[FlowProgress]:
        for number, data in enumerate(_entries(file)):
            if data is None:
                self.refused["never stands still"] += 1
                if number in file.last:  # its writer lost the processor: what it said last stands
                    yield file.last[number]
                continue
            if file.seen.get(number) == data:
                yield file.last[number]
                continue
            try:
                yield self._checked(file, number, Fields._make(ENTRY.unpack(data)))
                file.seen[number] = data
            except _Refused as reason:
                if str(reason):
                    self.refused[str(reason)] += 1

    def _checked(self, file: _File, number: int, fields: Fields) -> FlowProgress:
        """What an entry says, if that can be; raises _Refused, without a reason where it is not in use."""
        if not fields.direction:
            raise _Refused
        if fields.direction not in _DIRECTIONS or fields.role not in _ROLES or fields.phase not in _PHASES:
            raise _Refused("unknown direction, role or phase")
        if max(fields.total, fields.carried, fields.chunk, fields.iteration) >= BYTES_MAX:
            raise _Refused("beyond 2^50")
        if not fields.done <= fields.ready <= fields.total:
            raise _Refused("more done than ready, or more ready than there is")
        if fields.carried < fields.done:
            raise _Refused("less carried than done")
        last = file.last.get(number)
        if last and (fields.iteration < last.iteration or fields.carried < last.carried):
            raise _Refused("going backwards")
        flow = _flow(*fields[1:6])
        direction = _DIRECTIONS[fields.direction]
        if file.uid != _ROOT and file.owned.get(number) != flow:
            if not _is_flow_of(flow, direction, file.header.pid, file.uid):
                raise _Refused("another user's flow")
            file.owned[number] = flow
        file.last[number] = FlowProgress(
            file.header.job.rstrip(b"\0").decode(errors="replace"),
            file.header.pid,
            flow,
            direction,
            _ROLES[fields.role],
            fields.group,
            _PHASES[fields.phase],
            fields.iteration,
            fields.total,
            fields.ready,
            fields.done,
            fields.carried,
            fields.chunk,
            fields.updated_ns,
        )
        return file.last[number]

    def _forget(self, name: str) -> None:
        _, file = self._files.pop(name)
        if file:
            self._processes.unregister(file.process)
            file.close()

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()
        if name in self._files:
            self._forget(name)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._files):
            self._forget(name)

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


def _entries(file: _File) -> list[bytes | None]:
    """The entries in use as they were at one moment each; None for one that was always being written."""
    used = int.from_bytes(os.pread(file.fd, 4, _USED), "little")
    count = min(used, file.header.capacity)
    found = _whole(file.fd, HEADER.size, count)
    for number in range(count):
        for _ in range(_ATTEMPTS):
            if found[number] is not None:
                break
            [found[number]] = _whole(file.fd, HEADER.size + number * ENTRY.size, 1)
    return found


def _whole(fd: int, begin: int, count: int) -> list[bytes | None]:
    """`count` entries from `begin` on; None for one that was being written.

    It is read three times: within one reading the kernel copies in any order, so only what lies between two
    equal, even sequence numbers is whole. Zeros (not in use) stand for what lies beyond the file's end.
    """
    size = count * ENTRY.size
    before, data, after = (os.pread(fd, size, begin).ljust(size, b"\0") for _ in range(3))
    return [
        data[at : at + ENTRY.size]
        if before[at : at + 8] == data[at : at + 8] == after[at : at + 8] and not data[at] % 2
        else None
        for at in range(0, size, ENTRY.size)
    ]


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
