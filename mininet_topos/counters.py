"""Reads what the interfaces of emulated switches have received and sent, with any program on the switches."""

from __future__ import annotations

import socket
import struct
import time

from controlplane.fabric import PortCounters
from controlplane.topology import Topology
from machine import netlink

_GET_LINK = 18
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_STATS64 = 23  # IFLA_STATS64
_COUNTS = struct.Struct("=QQQQ")  # of struct rtnl_link_stats64: packets received, sent, bytes received, sent


class Counters:
    """The kernel's counts of the ports of `topology`, whose switches are in this namespace.

    Raises OSError for an interface that is not there.
    """

    def __init__(self, topology: Topology) -> None:
        self._ports = {
            socket.if_nametoindex(switch.interface(port.number)): (switch.name, port.number)
            for switch in topology.switches
            for port in switch.ports
        }
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._socket.close()

    def read(self) -> dict[tuple[str, int], PortCounters]:
        """Return what each port has counted since its interface was made, by switch and number."""
        now = time.monotonic_ns()
        counted = {}
        for body in netlink.dump(self._socket, _GET_LINK, _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            _, _, ifindex, _, _ = _IFINFO.unpack_from(body)
            if ifindex in self._ports:
                statistics = dict(netlink.attributes(body[_IFINFO.size :]))[_STATS64]
                received, sent, received_bytes, sent_bytes = _COUNTS.unpack_from(statistics)
                counted[self._ports[ifindex]] = PortCounters(now, received, received_bytes, sent, sent_bytes)
        return counted
