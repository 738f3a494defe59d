"""Packets field by field, for headers that no library knows."""

from __future__ import annotations

from collections.abc import Iterable


def bits(fields: Iterable[tuple[int, int]]) -> bytes:
    """Concatenate (value, width) pairs, most significant first; the widths sum to whole bytes."""
    whole = total = 0
    for value, width in fields:
        whole = whole << width | value & (1 << width) - 1
        total += width
    assert total % 8 == 0, f"{total} bits are no whole bytes"
    return whole.to_bytes(total // 8, "big")


def unbits(data: bytes, widths: Iterable[int]) -> list[int]:
    """The fields of the given widths at the start of `data`."""
    whole, left = int.from_bytes(data, "big"), 8 * len(data)
    values = []
    for width in widths:
        left -= width
        values.append(whole >> left & (1 << width) - 1)
    return values


def signed(value: int, width: int) -> int:
    """The two's complement number that `value`'s low `width` bits stand for."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> width - 1 else value


def ether(
    ethertype: int, payload: bytes = b"", *, dst: int = 0x020000000001, src: int = 0x020000000002
) -> bytes:
    """An Ethernet frame without padding."""
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ethertype.to_bytes(2, "big") + payload


def crc16(data: bytes) -> int:
    """CRC-16/ARC: polynomial 0x8005, reflected."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
