"""The switch's ports: set up interfaces, watch them, and hand them to the datapath.

A port goes down when its interface disappears, and comes back when an interface of that name appears again.
Offloads stay on: large packets pass whole, and the kernel fills in their checksums later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import netlink
from machine.errors import BadInput, EntrainError, MissingTool
from softswitch.contract import Datapath

log = logging.getLogger(__name__)

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU = 0x8913, 0x8914, 0x8922
_IFF_UP, _IFF_RUNNING, _IFF_NOARP = 0x1, 0x40, 0x80
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_PROMISC = 263, 1, 1
_NETLINK_ROUTE, _RTMGRP_LINK, _RTMGRP_TC = 0, 1, 8
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK, _RTM_NEWQDISC, _RTM_DELQDISC = 16, 17, 18, 36, 37
_IFLA_IFNAME, _IFLA_MTU, _IFLA_QDISC = 3, 4, 6
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg

_NO_QUEUE = "noqueue"

Rate = tuple[float, int | None]  # Mbit/s, and the queue's length in packets if given


@dataclass
class Port:
    """One port. `ifindex` is None while the interface does not exist."""

    number: int
    interface: str
    ifindex: int | None = None
    up: bool = False
    queued: bool = True
    """Whether packets may wait at the interface: it has a queueing discipline."""
    mtu: int | None = None
    """None until it is known."""


@dataclass(frozen=True)
class _Link:
    """An interface as the kernel describes it. `qdisc` and `mtu` are None where the kernel did not say."""

    ifindex: int
    flags: int
    name: str
    qdisc: str | None = None
    mtu: int | None = None


def parse_port(text: str) -> tuple[int, str]:
    """Parse `PORT@IFACE`, simple_switch's syntax. Raises BadInput."""
    number, at, interface = text.partition("@")
    if not at or not number.isdecimal() or not interface:
        raise BadInput(f"-i {text}: write PORT@INTERFACE, such as 1@eth0")
    if int(number) > 510:
        raise BadInput(f"-i {text}: the largest port number is 510")
    if len(interface.encode()) > 15:
        raise BadInput(f"-i {text}: an interface name has at most 15 bytes")
    return int(number), interface


def parse_rate(text: str) -> tuple[int, Rate]:
    """Parse `PORT@MBPS[:QUEUE_PACKETS]`. Raises BadInput."""
    number, at, rest = text.partition("@")
    mbps, colon, queue = rest.partition(":")
    try:
        rate = (float(mbps), int(queue) if colon else None)
        if not at or rate[0] <= 0 or (rate[1] is not None and rate[1] < 1):
            raise ValueError
        return int(number), rate
    except ValueError:
        raise BadInput(
            f"--port-rate {text}: write PORT@MBPS[:QUEUE_PACKETS], such as 1@100 or 1@100:64"
        ) from None


def _ioctl(request: int, interface: str, value: bytes = b"") -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("16s24s", interface.encode(), value))


def _flags(interface: str) -> int:
    return int(struct.unpack_from("h", _ioctl(_SIOCGIFFLAGS, interface), 16)[0])


def bring_up(interface: str, *, noarp: bool = False, mtu: int | None = None) -> None:
    """Set an interface up. Raises MissingTool unless root."""
    try:
        if mtu is not None:
            _ioctl(_SIOCSIFMTU, interface, struct.pack("i", mtu))
        flags = _flags(interface) | _IFF_UP | (_IFF_NOARP if noarp else 0)
        _ioctl(_SIOCSIFFLAGS, interface, struct.pack("h", flags))
    except PermissionError as error:
        raise MissingTool(f"cannot set interface {interface} up: {error.strerror}; run as root") from error


def _ipv6_switch(interface: str) -> Path:
    return Path("/proc/sys/net/ipv6/conf") / interface / "disable_ipv6"


def disable_ipv6(interface: str) -> str | None:
    """Stop the kernel from sending IPv6 packets of its own.

    Return the previous setting, or None on a kernel without IPv6.
    """
    path = _ipv6_switch(interface)
    with contextlib.suppress(OSError):
        before = path.read_text(encoding="utf-8").strip()
        path.write_text("1", encoding="utf-8")
        return before
    return None


class Ports:
    """All ports of one switch. Calls `changed(port)` when a port goes up or down."""

    def __init__(
        self,
        interfaces: dict[int, str],
        rates: dict[int, Rate] | None = None,
        changed: Callable[[int], None] = lambda port: None,
    ) -> None:
        """Set up the interfaces. BadInput if one is missing or listed twice; MissingTool unless root."""
        self._rates = rates or {}
        self.changed = changed
        self._datapath: Datapath | None = None
        self._ipv6_before: dict[str, str] = {}
        if unknown := self._rates.keys() - interfaces.keys():
            raise BadInput(f"--port-rate {min(unknown)}@...: there is no port {min(unknown)}; add it with -i")
        if twice := [name for name in interfaces.values() if list(interfaces.values()).count(name) > 1]:
            raise BadInput(f"-i: interface {twice[0]} is assigned to more than one port")
        for number, name in interfaces.items():
            try:
                socket.if_nametoindex(name)
            except OSError:
                raise BadInput(f"-i {number}@{name}: there is no interface {name} here") from None
        try:
            # A packet socket's membership keeps the interface promiscuous for as long as this process lives.
            self._promiscuous = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError as error:
            raise MissingTool("run the switch as root: it attaches programs to its ports") from error
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE)
        self._netlink.bind((0, _RTMGRP_LINK | _RTMGRP_TC))
        self._netlink.setblocking(False)
        self.ports = {number: Port(number, name) for number, name in interfaces.items()}
        for port in self.ports.values():
            self._adopt(port, socket.if_nametoindex(port.interface))

    def _adopt(self, port: Port, ifindex: int) -> None:
        before = disable_ipv6(port.interface)
        if before is not None:
            self._ipv6_before.setdefault(port.interface, before)
        bring_up(port.interface)
        membership = struct.pack("iHH8s", ifindex, _PACKET_MR_PROMISC, 0, b"")
        self._promiscuous.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        port.ifindex = ifindex
        port.up = _flags(port.interface) & _IFF_RUNNING != 0
        port.queued, port.mtu = True, None
        self._ask(ifindex)
        if self._datapath is not None:
            self._add(self._datapath, port)

    def _ask(self, ifindex: int) -> None:
        """Ask for the interface's state, which `poll` reads."""
        message = _IFINFO.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0)
        self._netlink.send(netlink.request(_RTM_GETLINK, message))

    def _add(self, datapath: Datapath, port: Port) -> None:
        if port.ifindex is None:
            return
        rate, queue = self._rates.get(port.number, (None, None))
        try:
            datapath.add_port(port.number, port.ifindex, rate)
        except EntrainError:
            if self._is_there(port):
                raise
            port.ifindex, port.up = None, False  # it has just disappeared, and `poll` will see that next
            return
        datapath.set_queued(port.number, port.queued)
        if port.mtu is not None:
            datapath.set_mtu(port.number, port.mtu)
        if rate is not None and queue is not None:
            datapath.set_queue(port.number, rate, queue)

    @staticmethod
    def _is_there(port: Port) -> bool:
        with contextlib.suppress(OSError):
            return socket.if_nametoindex(port.interface) == port.ifindex
        return False

    def attach(self, datapath: Datapath) -> None:
        """Let `datapath` process the packets of all ports, in place of the previous datapath.

        Raises EntrainError if that fails. The ports are then attached to the previous datapath again.
        """
        before = self._datapath
        try:
            self._move(before, datapath)
        except EntrainError:
            self._move(datapath, before)
            raise

    def _move(self, before: Datapath | None, after: Datapath | None) -> None:
        self._datapath = after
        for port in self.ports.values():
            if before is not None:
                with contextlib.suppress(EntrainError):  # it never had this port, or has lost it
                    before.remove_port(port.number)
            if after is not None:
                self._add(after, port)

    def is_up(self, number: int) -> bool:
        """Return whether the port has a carrier. Ports without an interface, such as the CPU's, are up."""
        port = self.ports.get(number)
        return port is None or port.up

    def fileno(self) -> int:
        """Return a descriptor that is readable after an interface has changed. Then call `poll`."""
        return self._netlink.fileno()

    def poll(self) -> None:
        """Process all waiting changes of interfaces."""
        while True:
            try:
                data = self._netlink.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._resync()
                continue
            for kind, message in netlink.messages(data):
                if kind in (_RTM_NEWLINK, _RTM_DELLINK):
                    self._changed(kind, _link(message))
                elif kind in (_RTM_NEWQDISC, _RTM_DELQDISC):
                    ifindex = struct.unpack_from("=B3xi", message)[1]
                    if any(port.ifindex == ifindex for port in self.ports.values()):
                        self._ask(ifindex)

    def _resync(self) -> None:
        """Check every interface, after the kernel has dropped notifications."""
        for port in self.ports.values():
            try:
                ifindex, flags = socket.if_nametoindex(port.interface), _flags(port.interface)
            except OSError:
                self._changed(_RTM_DELLINK, _Link(port.ifindex or 0, 0, port.interface))
            else:
                self._changed(_RTM_NEWLINK, _Link(ifindex, flags, port.interface))
                self._ask(ifindex)

    def _changed(self, kind: int, link: _Link) -> None:
        ifindex, flags, name = link.ifindex, link.flags, link.name
        for port in self.ports.values():
            was_up = port.up
            if port.ifindex == ifindex and (kind == _RTM_DELLINK or name != port.interface):
                log.warning("port %d: interface %s is gone", port.number, port.interface)
                port.ifindex, port.up = None, False
                if self._datapath is not None:
                    with contextlib.suppress(EntrainError):
                        self._datapath.remove_port(port.number)
            elif port.interface == name and kind == _RTM_NEWLINK:
                if port.ifindex != ifindex:
                    log.warning("port %d: interface %s is back", port.number, name)
                    try:
                        self._adopt(port, ifindex)
                    except (OSError, EntrainError) as error:  # it has disappeared again
                        log.warning("port %d: %s: %s", port.number, name, error)
                        port.ifindex = None
                port.up = port.ifindex is not None and flags & _IFF_RUNNING != 0
                if link.qdisc is not None and port.ifindex == ifindex:
                    self._set_queued(port, link.qdisc != _NO_QUEUE)
                if link.mtu is not None and port.ifindex == ifindex:
                    self._set_mtu(port, link.mtu)
            if port.up != was_up:
                log.info("port %d (%s) is %s", port.number, port.interface, "up" if port.up else "down")
                self.changed(port.number)

    def _set_queued(self, port: Port, queued: bool) -> None:
        if port.queued != queued:
            port.queued = queued
            if self._datapath is not None:
                self._datapath.set_queued(port.number, queued)

    def _set_mtu(self, port: Port, mtu: int) -> None:
        if port.mtu != mtu:
            port.mtu = mtu
            if self._datapath is not None:
                self._datapath.set_mtu(port.number, mtu)

    def close(self) -> None:
        """Restore the interfaces to their previous state."""
        self._promiscuous.close()
        self._netlink.close()
        for name, before in self._ipv6_before.items():
            with contextlib.suppress(OSError):
                _ipv6_switch(name).write_text(before, encoding="utf-8")


def _link(message: bytes) -> _Link:
    """Return what a link message (struct ifinfomsg and attributes) says."""
    _, _, ifindex, flags, _ = _IFINFO.unpack_from(message)
    attributes = dict(netlink.attributes(message[_IFINFO.size :]))
    names = {
        kind: value.rstrip(b"\0").decode()
        for kind, value in attributes.items()
        if kind in (_IFLA_IFNAME, _IFLA_QDISC)
    }
    mtu = struct.unpack_from("=I", attributes[_IFLA_MTU])[0] if _IFLA_MTU in attributes else None
    return _Link(ifindex, flags, names.get(_IFLA_IFNAME, ""), names.get(_IFLA_QDISC), mtu)
