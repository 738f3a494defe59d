"""Packet sockets on the hosts of a `Pair`, and carriers made by hand."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

from ebpf import in_netns
from machine.patience import patience
from wire.flow import Flow
from wire.slot_header import ETHERTYPE, SlotHeader

ETH_P_ALL, SO_RCVBUFFORCE = 3, 33


def raw_socket(netns: str) -> socket.socket:
    """It sends frames from eth0 there, and receives none."""
    raw = in_netns(netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    raw.bind(("eth0", 0))
    return raw


def sniff(netns: str, interface: str = "eth0") -> socket.socket:
    """It sees all frames of an interface there, carriers before they are consumed."""
    tap = in_netns(netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    tap.bind((interface, ETH_P_ALL))
    tap.settimeout(0.2)
    return tap


def headers_seen(tap: socket.socket) -> list[SlotHeader]:
    """The slot headers that came by, until nothing comes any more."""
    found: list[SlotHeader] = []
    while True:
        try:
            frame = tap.recv(65536)
        except TimeoutError:
            return found
        if frame[12:14] == struct.pack("!H", ETHERTYPE):
            found.append(SlotHeader.unpack(frame[14:]))


def mac(netns: str) -> bytes:
    """The address of eth0 there."""
    with raw_socket(netns) as raw:
        address: bytes = raw.getsockname()[4]
        return address


def slot_frame(destination: bytes) -> bytes:
    """The Ethernet header of a carrier."""
    return destination + bytes(6) + struct.pack("!H", ETHERTYPE)


def headers_of(flow: Flow) -> bytes:
    """IPv4 and TCP headers without checksums."""
    ends = socket.inet_aton(flow.source) + socket.inet_aton(flow.destination)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, flow.protocol, 0) + ends
    return ip + struct.pack("!HH", flow.source_port, flow.destination_port) + bytes(16)


def wait_until(condition: Callable[[], bool]) -> None:
    """Fail when it does not come true within a minute."""
    deadline = time.monotonic() + patience(60)
    while not condition():
        assert time.monotonic() < deadline, "did not come true within a minute"
        threading.Event().wait(0.005)
