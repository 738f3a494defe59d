"""Packets for resize.p4, and what it makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.p4.targets import PORTS, Injected, Output

MOST = 80  # bytes parsed and emitted
_BLOCKS = (64, 32, 16, 8, 4, 2, 1)
_EMITTED = bytes(range(0x80, 0xFF))  # the blocks of resize.p4, one behind the other
_ETHERTYPES = (0x0800, 0x86DD, 0x8100, 0x88A8, 0x0806, 0x8847, 0x9100, 0x1234, 0x0040)


def frame(source: random.Random, parsed: int, emitted: int, length: int = 0) -> bytes:
    """A frame of any protocol and of 20 bytes or more that has its first `parsed` bytes replaced."""
    ethertype = source.choice(_ETHERTYPES)
    payload = bytearray(source.randbytes(source.choice((6, 20, 26, 30, 50, 66, 106, 286, 1486))))
    if ethertype in (0x0800, 0x86DD) and source.random() < 0.5:  # headers that the kernel recognizes
        ip = "4500 0000 0000 0000 4011" if ethertype == 0x0800 else "6000 0000 0000 1140"
        payload[: len(bytes.fromhex(ip))] = bytes.fromhex(ip)
    command = bytes([parsed, emitted]) + length.to_bytes(2, "big") + source.randbytes(2)
    return source.randbytes(6) + command + ethertype.to_bytes(2, "big") + bytes(payload)


def frames(seed: int) -> Iterator[Injected]:
    """A frame for each pair of numbers of bytes parsed and emitted; every third is also cut."""
    source = random.Random(seed)
    for parsed in range(MOST + 1):
        for emitted in range(MOST + 1):
            length = source.choice((0, 0, source.randrange(1, 200)))
            yield source.choice(PORTS), frame(source, parsed, emitted, length)


def resized(packet: bytes) -> bytes:
    """What resize.p4 makes of a frame."""
    parsed, emitted, length = packet[6], packet[7], int.from_bytes(packet[8:10], "big")
    taken, made, at = 0, b"", 0
    for size in _BLOCKS:
        if parsed & size:
            if taken + size > len(packet):
                break  # the parser stops with an error, and what it took is taken
            taken += size
    for size in _BLOCKS:
        if emitted & size:
            made += _EMITTED[at : at + size]
        at += size
    return (made + packet[taken:])[: length or None]


def outputs(port: int, packet: bytes, *, least: int = 0) -> list[Output]:
    """What leaves when `packet` comes to `port`, over links that take no frame below `least` bytes."""
    made = resized(packet)
    return [(port, made)] if len(made) >= least else []
