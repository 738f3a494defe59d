"""The sockets behind flows: their congestion control, and waking those that TCP itself would not look at.

A flow whose window is closed (slot_pacing.bpf.c) and that has nothing on its way is looked at by TCP when an
application writes, or after 200 ms. To let it go on at once the socket is borrowed from its process, for as
long as one system call takes, and asked to send what waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ebpf import in_netns
from hostbpf.slots import Flow
from machine.errors import EntrainError

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20
_CONTROL = 4  # INET_DIAG_CONG
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_SOCKET_ID = struct.Struct("!HH16s16s")
_ANSWER = struct.Struct("=BBBB48sIIIII")
_PIDFD_GETFD = 438  # alike on all architectures
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Socket:
    """One TCP socket: its congestion control, and the number of its inode."""

    flow: Flow
    control: str
    inode: int


@dataclass(frozen=True)
class Descriptor:
    """Where the socket of `flow` is open."""

    flow: Flow
    process: int
    number: int

    def wake(self) -> bool:
        """Have the socket send what waits, if its window lets it; False where it is no longer open there."""
        try:
            pidfd = os.pidfd_open(self.process)
        except OSError:
            return False
        try:
            borrowed = _LIBC.syscall(_PIDFD_GETFD, pidfd, self.number, 0)
        finally:
            os.close(pidfd)
        if borrowed < 0:
            return False
        try:
            own = socket.socket(fileno=borrowed)
        except OSError:  # it has become something else
            os.close(borrowed)
            return False
        with own, contextlib.suppress(OSError):
            if Flow.of(own) != self.flow:
                return False
            before = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # pushes
            if not before:
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            return True
        return False


def find(flow: Flow, netns: str | None = None) -> Socket | None:
    """The socket that sends TCP `flow` in network namespace `netns`; None where there is none."""
    return in_netns(netns, lambda: _find(flow))


def opened(wanted: Iterable[Socket]) -> dict[Flow, Descriptor]:
    """Where sockets are open, of all processes that this one sees; takes some 10 ms."""
    links = {f"socket:[{each.inode}]": each.flow for each in wanted}
    found: dict[Flow, Descriptor] = {}
    for directory in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for each in directory.iterdir():
                with contextlib.suppress(OSError):
                    flow = links.get(str(each.readlink()))
                    if flow is not None:
                        found[flow] = Descriptor(flow, int(directory.parent.name), int(each.name))
    return found


def _find(flow: Flow) -> Socket | None:
    source, destination = (ipaddress.IPv4Address(each).packed for each in (flow.source, flow.destination))
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << (_CONTROL - 1), 0xFFFFFFFF)
    body += _SOCKET_ID.pack(flow.source_port, flow.destination_port, source, destination)
    body += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, any cookie
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
        diag.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, 1, 1, 0) + body)
        data = diag.recv(1 << 16)
    length, kind, *_ = _HEADER.unpack_from(data)
    if kind != _BY_FAMILY:
        (code,) = struct.unpack_from("=i", data, _HEADER.size)
        if -code == errno.ENOENT:
            return None
        raise EntrainError(f"sock_diag: {os.strerror(-code)}; a kernel with CONFIG_INET_DIAG is needed")
    inode: int = _ANSWER.unpack_from(data, _HEADER.size)[-1]
    return Socket(flow, _control(data[_HEADER.size + _ANSWER.size : length]), inode)


def _control(attributes: bytes) -> str:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _CONTROL:
            return attributes[4:length].rstrip(b"\0").decode()
        attributes = attributes[length + -length % 4 :]
    return ""
