"""The sockets behind flows: their congestion control, and waking those that TCP itself would not look at.

A flow whose window is closed (slot_pacing.bpf.c) and that has nothing on its way is looked at by TCP when an
application writes, or after 200 ms. To let it go on at once the socket is borrowed from its process, for as
long as one system call takes, and asked to send what waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ebpf import in_netns
from ebpf.namespaces import netns_identity, netns_path
from machine.errors import EntrainError
from wire.flow import Flow

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
    """The socket at one end of a flow: its congestion control (TCP), its inode and its owner."""

    flow: Flow
    control: str
    inode: int
    uid: int


class SocketDiag:
    """Finds sockets of one network namespace by their flow (sock_diag(7)), and where they are open."""

    def __init__(self, netns: str | None = None) -> None:
        """Ask about the namespace `netns` (a name or path; None: the present one).

        Raises EntrainError where there is none.
        """
        self._netlink = in_netns(
            netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
        )
        self._home = netns_identity(netns_path(netns or "/proc/thread-self/ns/net"))

    def find(self, flow: Flow, *, received: bool = False) -> Socket | None:
        """The connected socket that sends `flow`, or the one that receives it; None where there is none.

        It is one lookup in the kernel's hash tables, however many sockets there are. One thread may ask at a
        time.

        Raises EntrainError where the kernel cannot look up sockets of the flow's protocol.
        """
        source = (flow.source_port, socket.inet_aton(flow.source))
        destination = (flow.destination_port, socket.inet_aton(flow.destination))
        ends = (destination, source) if received else (source, destination)
        # For UDP the kernel takes the remote end as source (udp_dump_one).
        (near_port, near), (far_port, far) = ends[::-1] if flow.protocol == socket.IPPROTO_UDP else ends
        body = _REQUEST.pack(socket.AF_INET, flow.protocol, 1 << (_CONTROL - 1), 0xFFFFFFFF)
        body += _SOCKET_ID.pack(near_port, far_port, near, far)
        body += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, any cookie
        self._netlink.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, 1, 1, 0) + body)
        data = self._netlink.recv(1 << 16)
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind != _BY_FAMILY:
            (code,) = struct.unpack_from("=i", data, _HEADER.size)
            if -code == errno.ENOENT:
                return None
            raise EntrainError(f"sock_diag: {os.strerror(-code)}; a kernel with CONFIG_INET_DIAG is needed")
        family, _, _, _, found, _, _, _, uid, inode = _ANSWER.unpack_from(data, _HEADER.size)
        if _ends(family, found) != ends:  # a listener, or an unconnected socket
            return None
        return Socket(flow, _control(data[_HEADER.size + _ANSWER.size : length]), inode, uid)

    def opened(self, wanted: Iterable[Socket]) -> dict[Flow, Descriptor]:
        """Where sockets are open, of all processes that this one sees.

        Agents of many hosts may look at once when a job connects, before all else on their processors. So it
        looks at the namespace's own processes first, which mostly have the sockets, and no further than it
        has to.
        """
        links = {f"socket:[{each.inode}]": each.flow for each in wanted}
        found: dict[Flow, Descriptor] = {}
        processes = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
        for process in sorted(processes, key=self._is_elsewhere):
            if not links:
                break
            with contextlib.suppress(OSError):
                for each in (process / "fd").iterdir():
                    flow = links.pop(_target(each), None)
                    if flow is not None:
                        found[flow] = Descriptor(flow, int(process.name), int(each.name))
        return found

    def _is_elsewhere(self, process: Path) -> bool:
        try:
            return netns_identity(process / "ns" / "net") != self._home
        except OSError:
            return True

    def close(self) -> None:
        """Ask no more."""
        self._netlink.close()


def find(flow: Flow, netns: str | None = None) -> Socket | None:
    """The socket that sends `flow` in network namespace `netns`; None where there is none."""
    with contextlib.closing(SocketDiag(netns)) as diag:
        return diag.find(flow)


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


def _target(link: Path) -> str:
    """What a symbolic link names; "": there is none any more."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _ends(family: int, found: bytes) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """The local and the remote end of a socket; of IPv6 sockets the IPv4 addresses that theirs map."""
    port, far_port, address, far_address = _SOCKET_ID.unpack_from(found)
    part = slice(0, 4) if family == socket.AF_INET else slice(12, 16)
    return (port, address[part]), (far_port, far_address[part])


def _control(attributes: bytes) -> str:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _CONTROL:
            return attributes[4:length].rstrip(b"\0").decode()
        attributes = attributes[length + -length % 4 :]
    return ""
