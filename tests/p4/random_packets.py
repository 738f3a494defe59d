"""Random and mutated packets for each program: mostly such that reach deep, some that break off early."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from tests.p4.packets import bits, ether
from tests.p4.random_entries import value
from tests.p4.targets import CPU_PORT, PORTS, Injected

Generate = Callable[[random.Random], bytes]

MIN_SIZE = 14  # the kernel lets no shorter frame through
MAX_SIZE = 3000  # the kernel's test run takes less than a page, and a program may lengthen a packet


def fields(ethertype: int, *widths: int) -> Generate:
    """Packets of one header behind Ethernet, with values that entries match too."""

    def generate(rng: random.Random) -> bytes:
        header = bits([(value(rng, width), width) for width in widths])
        return ether(ethertype, header + payload(rng), dst=value(rng, 48), src=value(rng, 48))

    return generate


def payload(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 0, 1, 7, 20, 46, 100, rng.randrange(1500)]))


def one_of(*generators: Generate) -> Generate:
    def generate(rng: random.Random) -> bytes:
        return rng.choice(generators)(rng)

    return generate


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~int(total) & 0xFFFF


def ipv4(
    rng: random.Random, *, addresses: tuple[int, int] | None = None, options: bool = True, right: float = 0.85
) -> bytes:
    """IPv4 with options, fragments, UDP or TCP ports; the checksum mostly right."""
    extra = rng.randbytes(4 * rng.choice([0, 0, 0, 0, 1, 3, 10])) if options else b""
    body = payload(rng)
    protocol = rng.choice([6, 17, 17, 1, 253])
    src, dst = addresses or (value(rng, 32), value(rng, 32))
    if protocol == 17:
        body = bits([(value(rng, 16), 16), (value(rng, 16), 16), (8 + len(body), 16), (0, 16)]) + body
        if rng.random() < 0.7:
            pseudo = struct.pack("!IIHH", src, dst, protocol, len(body))
            body = body[:6] + checksum(pseudo + body).to_bytes(2, "big") + body[8:]
    header = [(4, 4), (5 + len(extra) // 4, 4), (value(rng, 8), 8), (20 + len(extra) + len(body), 16)]
    header += [(value(rng, 16), 16), (rng.choice([0, 2, 1]), 3), (rng.choice([0, 0, 0, 9]), 13)]
    header += [(rng.choice([*[64] * 12, 255, 2, 1, 0]), 8), (protocol, 8)]
    summed = bits([*header, (0, 16), (src, 32), (dst, 32)]) + extra
    found = checksum(summed) if rng.random() < right else value(rng, 16)
    return bits([*header, (found, 16), (src, 32), (dst, 32)]) + extra + body


def ip_frame(rng: random.Random) -> bytes:
    return ether(0x0800, ipv4(rng), dst=value(rng, 48), src=value(rng, 48))


# --- the parser's program ---


def _ipv6(rng: random.Random) -> bytes:
    src = rng.choice([0xFE80, 0x2001, 0x3000]) << 112 | rng.getrandbits(112)
    fixed = [
        (6, 4),
        (0, 28),
        (0, 16),
        (rng.choice([6, 7, 17]), 8),
        (64, 8),
        (src, 128),
        (value(rng, 128), 128),
    ]
    return bits(fixed) + payload(rng)


def _labels(rng: random.Random) -> bytes:
    depth = rng.randint(1, 4)
    stack = b"".join(bits([(value(rng, 20), 20), (0, 3), (n == depth - 1, 1), (9, 8)]) for n in range(depth))
    return stack + rng.choice([ipv4, _ipv6, payload])(rng)


def _tags(rng: random.Random) -> bytes:
    ethertype = rng.choice([0x0800, 0x8847, 0x9100, 0x8100, 0x1234])
    following = {0x0800: ipv4, 0x8847: _labels, 0x9100: payload, 0x8100: payload, 0x1234: payload}
    return bits([(value(rng, 4), 4), (value(rng, 12), 12), (ethertype, 16)]) + following[ethertype](rng)


def _values(rng: random.Random) -> bytes:
    body = b""
    for _ in range(rng.randint(1, 3)):
        content = rng.randbytes(rng.choice([0, 1, 15, 16, 17]))
        body += bytes([rng.choice([0, 1, 2]), len(content)]) + content
    return body + payload(rng)


def _parser(rng: random.Random) -> bytes:
    ethertype, body = rng.choice(
        [
            (0x0800, ipv4),
            (0x86DD, _ipv6),
            (0x8847, _labels),
            (0x9100, _tags),
            (0x9201, _values),
            (0x9000 + rng.randrange(256), payload),
            (0x9200, payload),
        ]
    )
    return ether(ethertype, body(rng))


def _stack(rng: random.Random) -> bytes:
    depth = rng.randint(1, 5)
    items = b"".join(
        bits([(value(rng, 7), 7), (n == depth - 1, 1), (value(rng, 16), 16)]) for n in range(depth)
    )
    return ether(0x9300, bytes([rng.randrange(13), rng.randrange(256)]) + items + payload(rng))


def _text(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 2, 16, 17])
    return bytes([5, size]) + rng.choice([bytes(size), b"\1" * size, rng.randbytes(size)])


def _unions(rng: random.Random) -> bytes:
    body = bytes([rng.randrange(7), rng.choice([0, 1, 255])])
    body += rng.choice([b"", bytes([1]) + rng.randbytes(1), bytes([2]) + rng.randbytes(3)])
    for _ in range(rng.choice([0, 1, 2, 3, 3, 4])):
        body += rng.choice([bytes([3]) + rng.randbytes(1), bytes([4]) + rng.randbytes(3)])
    if rng.random() < 0.6:
        first = _text(rng)
        body += first + rng.choice([first, _text(rng)])
    return ether(0xA400, body + b"\0" + payload(rng))


def _operators(base: int, layouts: dict[int, int]) -> Generate:
    return one_of(*(fields(base + width, width, pad, width, pad, 8) for width, pad in layouts.items()))


def _copies(rng: random.Random) -> bytes:
    op = rng.choice([0, 1, 2, 4, 8, 16, 32, 64, 128, rng.getrandbits(8) & ~24])
    header = bits([(op, 8), (rng.choice([1, 5, 7, 99]), 16), (rng.choice([0, 1, 2, 3]), 16)])
    if op & 32:
        header = header[:3] + rng.choice([14, 20, 64, 200]).to_bytes(2, "big")
    return ether(0xA000, header + payload(rng), dst=value(rng, 48), src=value(rng, 48))


def _state(rng: random.Random) -> bytes:
    header = [(rng.randrange(5), 8), (rng.randrange(256), 8), (value(rng, 128), 128), (0, 128)]
    return ether(0x9C00 + rng.randrange(6), bits(header) + payload(rng))


GENERATORS: dict[str, Generate] = {
    "parser": _parser,
    "stack": _stack,
    "match": fields(0x9400, 16, 32, 32, 16, 16, 128, 256, 5, 1, 10, 129, 7),
    "unions": _unions,
    "expr": _operators(0x9500, {1: 7, 7: 1, 8: 8, 13: 3, 16: 8, 32: 8, 33: 7, 63: 1, 64: 8}),
    "expr_wide": _operators(0x9500, {65: 7, 72: 8, 128: 8, 129: 7, 256: 8}),
    "expr_signed": _operators(0x9800, {8: 8, 13: 3, 32: 8, 33: 7, 64: 8, 100: 4, 128: 8}),
    "multiply": fields(0x9A00, 8, 8, 32, 32, 64, 64, 100, 100, 16, 16),
    "language": lambda rng: (
        fields(0x9B00, 8, 64, 128, 24, 24)(rng)[:14]
        + bytes([rng.randrange(11)])
        + fields(0x9B00, 8, 64, 128, 24, 24)(rng)[14:]
    ),
    "state": _state,
    "meter": fields(0x9D00, 8, 8, 8, 8),
    "hash": fields(0x9E00, 8, 16, 32, 48, 128, 4, 7, 5),
    "checksum": one_of(ip_frame, ip_frame, fields(0x9F00, 8, 8, 16, 16, 32, 16)),
    "replicate": _copies,
    "cpu": fields(0xA100, 8, 32),
    "selector": fields(0xA200, 16, 32, 32, 16, 16),
    "metadata": fields(0xA300, 8, 9, 7, 32, 32),
}


# --- mutations ---


def _flip(rng: random.Random, packet: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 2, 8])):
        packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, packet: bytearray) -> None:
    size = min(len(packet), rng.choice([1, 2, 4, 8]))
    at = rng.randrange(len(packet) - size + 1)
    packet[at : at + size] = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])


def _cut(rng: random.Random, packet: bytearray) -> None:
    del packet[rng.randrange(MIN_SIZE, max(MIN_SIZE + 1, min(len(packet), 120))) :]


def _grow(rng: random.Random, packet: bytearray) -> None:
    packet += rng.randbytes(rng.choice([1, 4, 64, 1000]))


def _shift(rng: random.Random, packet: bytearray) -> None:
    at = rng.randrange(len(packet))
    if rng.random() < 0.5 and len(packet) > MIN_SIZE + 4:
        del packet[at : at + rng.randint(1, 4)]
    else:
        packet[at:at] = rng.randbytes(rng.randint(1, 4))


_MUTATIONS: Sequence[Callable[[random.Random, bytearray], None]] = (_flip, _overwrite, _cut, _grow, _shift)


def mutated(rng: random.Random, packet: bytes) -> bytes:
    """The packet after one to three mutations, of MIN_SIZE to MAX_SIZE bytes."""
    changed = bytearray(packet)
    for _ in range(rng.randint(1, 3)):
        rng.choice(_MUTATIONS)(rng, changed)
    return bytes(changed[:MAX_SIZE]).ljust(MIN_SIZE, b"\0")


def tame(name: str, packet: bytes) -> bytes:
    """Without what BMv2 does not survive, or does in a way of its own.

    That is thousands of rounds of resubmission or recirculation, and multicast groups from 0x8000 on, where
    it keeps the replicas of clone sessions.
    """
    if name != "replicate" or packet[12:14] != b"\xa0\x00" or len(packet) < 19:
        return packet
    op, group, argument = packet[14], packet[15:17], packet[17:19]
    if op & 4:
        group = bytes([group[0] & 0x7F, group[1]])
    if op & 24:
        argument = bytes([0, argument[1] & 3])
    return packet[:15] + group + argument + packet[19:]


def packets(name: str, generate: Generate, rng: random.Random, count: int) -> list[Injected]:
    """`count` packets for program `name`: two in three as generated, the others mutated."""
    made: list[Injected] = []
    for _ in range(count):
        packet = generate(rng)
        if rng.random() < 1 / 3:
            packet = mutated(rng, packet)
        port = CPU_PORT if name in ("cpu", "fabric") and rng.random() < 0.03 else rng.choice(PORTS)
        if port == CPU_PORT:
            packet = bits([(value(rng, 9), 9), (rng.getrandbits(7), 7)]) + packet
        made.append((port, tame(name, packet)))
    return made
