"""Packet-in and packet-out: the CPU port, and conversion of controller headers (spec 16.1).

The CPU port is a TAP interface. This process reads what the program sends there, and what it writes enters
the program like a packet from any port. The kernel removes the interface when this process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from finsy.proto import p4r

from machine.errors import MissingTool
from softswitch.kernel.ports import bring_up, disable_ipv6
from softswitch.p4runtime.p4info import Header, decode, encode
from softswitch.p4runtime.status import invalid

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_MTU = 65521  # the largest that TAP allows, since controller headers come on top of any packet
_BATCH = 64


class CpuPort:
    """The interface between the program and controllers."""

    def __init__(self) -> None:
        """Create the interface. Raises MissingTool unless root, or without the kernel's TUN driver."""
        try:
            self._fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise MissingTool(
                f"the CPU port needs /dev/net/tun ({error.strerror}): run as root, with CONFIG_TUN"
            ) from error
        try:
            request = struct.pack("16sH22x", b"p4cpu%d", _IFF_TAP | _IFF_NO_PI)
            answer = fcntl.ioctl(self._fd, _TUNSETIFF, request)
            self.interface = answer[:16].rstrip(b"\0").decode()
            disable_ipv6(self.interface)
            bring_up(self.interface, noarp=True, mtu=_MTU)
            self.ifindex = socket.if_nametoindex(self.interface)
        except PermissionError as error:
            os.close(self._fd)
            raise MissingTool("cannot create the CPU port's interface: run as root") from error

    def fileno(self) -> int:
        """Return a descriptor that is readable while packets for the controller wait."""
        return self._fd

    def send(self, packet: bytes) -> None:
        """Pass a packet to the program. Raises OSError if it is too short or too long for the kernel."""
        os.write(self._fd, packet)

    def receive(self) -> Iterator[bytes]:
        """Yield the waiting packets, at most one batch."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BATCH):
                yield os.read(self._fd, 1 << 17)

    def close(self) -> None:
        """Remove the interface."""
        os.close(self._fd)


def to_message(header: Header | None, packet: bytes) -> Any:
    """Return the PacketIn for a packet from the CPU port, or None if it is too short for its header."""
    message = p4r.PacketIn()
    if header is None:
        message.payload = packet
        return message
    size = header.size
    if len(packet) < size:
        return None
    bits, left = int.from_bytes(packet[:size], "big"), 8 * size
    for field in header.fields:
        left -= field.width
        value = bits >> left & ((1 << field.width) - 1)
        message.metadata.add(metadata_id=field.id, value=encode(value))
    message.payload = packet[size:]
    return message


def to_packet(header: Header | None, message: Any) -> bytes:
    """Return the packet for the CPU port from a PacketOut. Raises Refused, naming the wrong metadata."""
    given = {}
    for metadata in message.metadata:
        if metadata.metadata_id in given:
            raise invalid(f"packet-out: metadata {metadata.metadata_id} is given twice")
        given[metadata.metadata_id] = metadata.value
    fields = header.fields if header is not None else ()
    if unknown := given.keys() - {field.id for field in fields}:
        raise invalid(f"packet-out: no metadata has id {min(unknown)}")
    bits = 0
    for field in fields:
        if field.id in given:
            value = decode(given[field.id], field.width, f"packet-out: metadata {field.name!r}")
        elif field.padding:
            value = 0
        else:
            raise invalid(f"packet-out: metadata {field.name!r} is missing")
        bits = bits << field.width | value
    size = header.size if header is not None else 0
    used = sum(field.width for field in fields)
    return (bits << (8 * size - used)).to_bytes(size, "big") + bytes(message.payload)
