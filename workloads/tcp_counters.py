"""Read the kernel's byte counters of this process's TCP connections, whichever library opened them.

Descriptors are used by number and never wrapped in Python sockets, which could close them or change their
mode. Only the standard library is used: see `wire.progress`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

CONTROL_VARIABLE = "ENTRAIN_CONGESTION_CONTROL"
"""Environment variable with the congestion control of connections that carry gradients."""

MARK_VARIABLE = "ENTRAIN_MARK"
"""Environment variable with the mark (SO_MARK) of connections that carry gradients."""

_LIBC = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter: these calls take a microsecond
_getsockname, _getpeername = _LIBC.getsockname, _LIBC.getpeername
_getsockopt, _setsockopt = _LIBC.getsockopt, _LIBC.setsockopt
_ADDRESS = struct.Struct("=H2s4s8x")  # struct sockaddr_in
_INFO = struct.Struct("=120xQQ")  # struct tcp_info: bytes_acked, bytes_received
_SIGNALS = struct.Struct("=100xI92xI")  # struct tcp_info: total_retrans, delivered_ce
_TIMEOUTS = struct.Struct("=240xH")  # struct tcp_info: total_rto, since Linux 6.7
_SIOCOUTQ = 0x5411  # linux/sockios.h: bytes that are not acknowledged
_SIOCOUTQNSD = 0x894B  # of them, never sent
_ATTEMPTS = 10
_AddressBuffer = ctypes.c_char * _ADDRESS.size

End = tuple[str, int]
"""IPv4 address and port."""


class Connection(NamedTuple):
    """An established IPv4 TCP connection of this process."""

    fd: int
    local: End
    remote: End


class Counters(NamedTuple):
    """Byte counters of a connection."""

    left: int
    """Bytes sent, without retransmissions."""
    unsent: int
    """Bytes that wait in the socket."""
    received: int

    @property
    def handed(self) -> int:
        """Bytes that the process has handed to the kernel."""
        return self.left + self.unsent


def own_connections() -> list[Connection]:
    """Return all established IPv4 TCP connections of this process."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        fd = int(entry.name)
        try:
            if str(entry.readlink()).startswith("socket:"):
                found.append(Connection(fd, _end(fd, _getsockname), _end(fd, _getpeername)))
        except OSError:  # closed meanwhile, not connected, not IPv4
            continue
    return [each for each in found if _protocol(each.fd) == socket.IPPROTO_TCP]


def count(connection: Connection) -> Counters:
    """Return a connection's counters. Raises OSError if it is closed, or its descriptor was reused.

    The bytes handed to the kernel are the acknowledged plus the queued ones. `tcpi_bytes_sent` would count a
    segment twice that the host's own queue dropped.
    """
    fd = connection.fd
    if (_end(fd, _getsockname), _end(fd, _getpeername)) != (connection.local, connection.remote):
        raise OSError("another connection")
    for _ in range(_ATTEMPTS):
        acknowledged, received = _info(fd)
        queued, unsent = (_queue(fd, request) for request in (_SIOCOUTQ, _SIOCOUTQNSD))
        if _info(fd)[0] == acknowledged:  # else some of it is counted nowhere
            break
    return Counters(acknowledged + queued - unsent, unsent, received)


class Signals(NamedTuple):
    """What the network has signalled to connections, as the kernel counts it for each."""

    marks: int = 0
    """Segments that were acknowledged with an ECN mark."""
    retransmitted: int = 0
    """Segments that were sent again."""
    timeouts: int | None = 0
    """Times that the retransmission timer expired (RFC 6298). None: this kernel, before 6.7, has no count."""


def signals(fds: Iterable[int]) -> Signals:
    """Return what open connections were signalled so far, all together. Raises OSError if one is closed."""
    marks = retransmitted = 0
    timeouts: int | None = 0
    for fd in fds:
        info = _option(fd, socket.IPPROTO_TCP, socket.TCP_INFO, _TIMEOUTS.size)
        total_retrans, delivered_ce = _SIGNALS.unpack_from(info)
        retransmitted, marks = retransmitted + total_retrans, marks + delivered_ce
        if len(info) < _TIMEOUTS.size:
            timeouts = None
        elif timeouts is not None:
            timeouts += _TIMEOUTS.unpack(info)[0]
    return Signals(marks, retransmitted, timeouts)


def signals_since(now: Signals, before: Signals) -> Signals:
    """Return what is new in `now`."""
    timeouts = None
    if now.timeouts is not None and before.timeouts is not None:
        timeouts = now.timeouts - before.timeouts
    return Signals(now.marks - before.marks, now.retransmitted - before.retransmitted, timeouts)


def set_congestion_control(connection: Connection, name: str) -> None:
    """Change the congestion control of an open connection. Raises OSError if that is not allowed."""
    value = name.encode()
    result = _setsockopt(connection.fd, socket.IPPROTO_TCP, socket.TCP_CONGESTION, value, len(value))
    _check(result)


def set_mark(connection: Connection, mark: int) -> None:
    """Change the mark (SO_MARK) of an open connection. Raises OSError without CAP_NET_ADMIN."""
    value = struct.pack("=I", mark)
    _check(_setsockopt(connection.fd, socket.SOL_SOCKET, socket.SO_MARK, value, len(value)))


def _check(result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _end(fd: int, function: Callable[[int, object, object], int]) -> End:
    buffer, length = _AddressBuffer(), ctypes.c_uint32(_ADDRESS.size)
    _check(function(fd, buffer, ctypes.byref(length)))
    family, port, address = _ADDRESS.unpack(buffer.raw)
    if family != socket.AF_INET:
        raise OSError("not IPv4")
    return socket.inet_ntoa(address), int.from_bytes(port, "big")


def _info(fd: int) -> tuple[int, int]:
    """Return the bytes acknowledged and received."""
    acknowledged, received = _INFO.unpack(_option(fd, socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return acknowledged, received


def _queue(fd: int, request: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, request, bytes(4)), "little")


def _option(fd: int, level: int, option: int, size: int) -> bytes:
    buffer, length = ctypes.create_string_buffer(size), ctypes.c_uint32(size)
    _check(_getsockopt(fd, level, option, buffer, ctypes.byref(length)))
    return buffer.raw[: length.value]


def _protocol(fd: int) -> int:
    return int.from_bytes(_option(fd, socket.SOL_SOCKET, socket.SO_PROTOCOL, 4), "little")
