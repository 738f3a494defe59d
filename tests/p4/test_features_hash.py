"""Hashes and checksums against their textbook definitions."""

from __future__ import annotations

import random
import zlib

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import bits, crc16, ether, unbits

INPUT = (8, 16, 32, 48, 128, 4, 7, 5)
HASHES = (32, 16, 16, 16, 32, 16, 16, 32, 32, 16, 16, 64, 32, 16, 32)


def words(data: bytes) -> list[int]:
    data += bytes(len(data) % 2)
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def csum16(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(words(data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def xor16(data: bytes) -> int:
    result = 0
    for word in words(data):
        result ^= word
    return result


def inputs() -> list[list[int]]:
    rng = random.Random(8)
    cases = [[rng.getrandbits(width) for width in INPUT] for _ in range(25)]
    return [*cases, [0] * 8, [(1 << width) - 1 for width in INPUT]]


def test_hashes(start: Start) -> None:
    cases = inputs()
    packets = [ether(0x9E00, bits(zip(case, INPUT, strict=True))) for case in cases]
    batch = start("hash").send_batch([(1, packet) for packet in packets])
    for (a, b, c, d, e, f, g, h), packet, outputs in zip(cases, packets, batch.outputs, strict=True):
        whole = bits([(a, 8), (b, 16), (c, 32), (d, 48), (e, 128)])
        odd = bits([(f, 4), (g, 7), (c, 32), (h, 5)])
        even = whole[1:]
        expected = {
            "crc32": zlib.crc32(whole),
            "crc16": crc16(whole),
            "csum16": csum16(even),
            "xor16": xor16(even),
            "identity": c,
            "crc16_bounded": 100 + crc16(whole) % 10,
            "crc32_bounded": 7 + zlib.crc32(whole) % 1000,
            "crc16_odd": crc16(odd),
            "crc32_odd": zlib.crc32(odd),
            "csum16_odd": csum16(odd),
            "xor16_wide": xor16(bits([(e, 128), (b, 16)])),
            "identity_wide": (b << 48 | d) % ((1 << 64) - 1),
            "crc32_constant": zlib.crc32(bits([(c, 32), (0xBEEF, 16), (a, 8)])),
        }
        found = unbits(outputs[0][1][len(packet) :], HASHES)
        assert dict(zip(expected, found, strict=False)) == expected


# --- checksums ---


def ipv4(payload: bytes, *, protocol: int = 17, options: bytes = b"") -> bytes:
    """An IPv4 packet with its right checksum."""
    length = 20 + len(options) + len(payload)
    fields = [
        (4, 4),
        (5 + len(options) // 4, 4),
        (0, 8),
        (length, 16),
        (7, 16),
        (0, 16),
        (64, 8),
        (protocol, 8),
    ]
    addresses = [(0x0A000001, 32), (0x0A000002, 32)]
    checksum = csum16(bits([*fields, (0, 16), *addresses]) + options)
    return bits([*fields, (checksum, 16), *addresses]) + options + payload


def udp(payload: bytes, checksum: int | None = None, dst: int = 80, src_ip: int = 0x0A000001) -> bytes:
    """A UDP datagram, as for the addresses of `ipv4` unless stated."""
    length = 8 + len(payload)
    head = [(1234, 16), (dst, 16), (length, 16)]
    if checksum is None:
        pseudo = bits([(src_ip, 32), (0x0A000002, 32), (17, 16), (length, 16)])
        checksum = csum16(pseudo + bits([*head, (0, 16)]) + payload)
    return bits([*head, (checksum, 16)]) + payload


def changed(packet: bytes, at: int) -> bytes:
    return packet[:at] + bytes([packet[at] ^ 0x10]) + packet[at + 1 :]


def verdict_of(start: Start, packet: bytes) -> tuple[int, bytes]:
    ((_, output),) = start("checksum").send(1, ether(0x0800, packet))
    return output[14], output[15:]


@pytest.mark.parametrize("size", [0, 1, 2, 17, 100, 1400])
@pytest.mark.parametrize("options", [b"", bytes(range(8)), bytes(range(100, 140))], ids=["0", "8", "40"])
def test_right_checksums_stay_right(start: Start, size: int, options: bytes) -> None:
    payload = random.Random(size).randbytes(size)
    verdict, output = verdict_of(start, ipv4(udp(payload), options=options))
    assert verdict == 0
    header = 20 + len(options)
    assert csum16(output[:header]) == 0
    assert output[8] == 63
    length = len(output) - header
    pseudo = output[12:20] + bits([(17, 16), (length, 16)])
    assert csum16(pseudo + output[header:]) == 0
    assert int.from_bytes(output[header + 2 : header + 4], "big") == 81


@pytest.mark.parametrize("at", [1, 8, 12, 19])
def test_wrong_header_checksum_is_seen(start: Start, at: int) -> None:
    assert verdict_of(start, changed(ipv4(b"", protocol=1), at))[0] == 1
    assert verdict_of(start, changed(ipv4(b"", protocol=1, options=bytes(8)), at))[0] == 1


@pytest.mark.parametrize("at", [20, 25, 28, 60])
def test_wrong_payload_checksum_is_seen(start: Start, at: int) -> None:
    assert verdict_of(start, changed(ipv4(udp(bytes(40))), at))[0] == 1


def test_udp_without_checksum_is_left_alone(start: Start) -> None:
    verdict, output = verdict_of(start, ipv4(udp(b"payload", checksum=0)))
    assert verdict == 0
    assert output[26:28] == b"\0\0"


@pytest.mark.parametrize("flags", range(32))
def test_each_sum_under_its_condition(start: Start, flags: int) -> None:
    payload = b"odd number of bytes"
    right = flags << 8 | 0x42
    packet = ether(0x9F00, bits([(flags, 8), (0x42, 8), (right, 16), (1, 16), (2, 32), (3, 16)]) + payload)
    ((_, output),) = start("checksum").send(1, packet)
    assert output[14] == 0
    after = bytes([flags, 0x43])
    expected = [
        xor16(after) if flags & 2 else right,
        crc16(after) if flags & 4 else 1,
        zlib.crc32(after) if flags & 8 else 2,
        csum16(after + payload) if flags & 16 else 3,
    ]
    assert output[15:17] == after
    assert unbits(output[17:], (16, 16, 32, 16)) == expected


def test_wrong_xor_is_seen_only_where_it_is_verified(start: Start) -> None:
    for flags, verdict in ((0, 0), (1, 1)):
        packet = ether(0x9F00, bits([(flags, 8), (0x42, 8), (0x9999, 16), (1, 16), (2, 32), (3, 16)]))
        ((_, output),) = start("checksum").send(1, packet)
        assert output[14] == verdict
