"""Bytes on this process's own TCP connections, as the kernel counts them, whoever has opened them.

Descriptors are looked at by number and never turned into Python sockets: those could close them, or change
their mode, under the library that owns them. Standard library only: see `machine.progress`.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CONTROL_VARIABLE = "ENTRAIN_CONGESTION_CONTROL"
"""The environment's variable with the congestion control of connections that carry gradients."""

_LIBC = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter: these calls take a microsecond
_getsockname, _getpeername = _LIBC.getsockname, _LIBC.getpeername
_getsockopt, _setsockopt = _LIBC.getsockopt, _LIBC.setsockopt
_ADDRESS = struct.Struct("=H2s4s8x")  # struct sockaddr_in
_INFO = struct.Struct("=144xI52xQQ")  # struct tcp_info: notsent_bytes, bytes_sent, bytes_retrans
_RECEIVED = struct.Struct("=128xQ")  # bytes_received
_TCP_INFO_BYTES = 256
_AddressBuffer = ctypes.c_char * _ADDRESS.size

End = tuple[str, int]
"""IPv4 address and port."""


class Connection(NamedTuple):
    """An established IPv4 TCP connection of this process."""

    fd: int
    local: End
    remote: End


class Counters(NamedTuple):
    """Bytes of a connection: that left (once each), that wait unsent in the socket, that came."""

    left: int
    unsent: int
    received: int

    @property
    def handed(self) -> int:
        """Bytes that the process has handed to the kernel."""
        return self.left + self.unsent


def own_connections() -> list[Connection]:
    """All connections of this process."""
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
    """Its counters now; raises OSError when it is closed (or another has got its descriptor)."""
    fd = connection.fd
    if (_end(fd, _getsockname), _end(fd, _getpeername)) != (connection.local, connection.remote):
        raise OSError("another connection")
    info = _option(fd, socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    unsent, sent, retransmitted = _INFO.unpack_from(info)
    return Counters(sent - retransmitted, unsent, *_RECEIVED.unpack_from(info))


def set_congestion_control(connection: Connection, name: str) -> None:
    """Change the congestion control of an open connection; raises OSError where that is not allowed."""
    value = name.encode()
    result = _setsockopt(connection.fd, socket.IPPROTO_TCP, socket.TCP_CONGESTION, value, len(value))
    _check(result)


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


def _option(fd: int, level: int, option: int, size: int) -> bytes:
    buffer, length = ctypes.create_string_buffer(size), ctypes.c_uint32(size)
    _check(_getsockopt(fd, level, option, buffer, ctypes.byref(length)))
    return buffer.raw


def _protocol(fd: int) -> int:
    return int.from_bytes(_option(fd, socket.SOL_SOCKET, socket.SO_PROTOCOL, 4), "little")
