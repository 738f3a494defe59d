"""Headers outside of the packet: copies in metadata and local variables, with varbit fields and without."""

from __future__ import annotations

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether

TELL, COPY, MOVE, LOCAL, VARBIT, FIELDS = range(6)
PAIR = 0x80  # in an opcode: a pair follows the command, which the program takes away
LOW, WIDE = 0x5A5, (1 << 128) - 2
TAIL = b"tail of the packet"


def pair(high: int = 3, low: int = LOW, wide: int = WIDE) -> bytes:
    return bits([(high, 4), (low, 12), (wide, 128)])


def expected(opcode: int, command: bytes) -> tuple[bytes, bytes]:
    """What stands before and behind the Ethernet header."""
    has_pair = opcode & PAIR != 0
    first, last, copy = b"" if has_pair else command, pair() if has_pair else b"", pair() if has_pair else b""
    match opcode & ~PAIR:
        case 0:
            return bytes([0xE0, opcode]) + LOW.to_bytes(2, "big"), first + last
        case 1:
            return b"", first + command + last + copy
        case 2:
            return b"", command + copy
        case 3:
            return b"", first + b"\x55" + command[1:] + last
        case 4:
            return b"", first + b"\x44" + command[1:] + last
    return b"", first + last + (pair(9, LOW ^ 0x0F0, WIDE + 1) if has_pair else b"")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 39, 40])
@pytest.mark.parametrize(
    "opcode",
    [COPY, MOVE, LOCAL, VARBIT, FIELDS, *(PAIR | op for op in (TELL, COPY, MOVE, LOCAL, VARBIT, FIELDS))],
)
def test_a_copy_is_the_header_when_it_was_copied(start: Start, opcode: int, length: int) -> None:
    command = bytes([opcode, length]) + bytes(range(100, 100 + length))
    packet = ether(0x9500, command + (pair() if opcode & PAIR else b"") + TAIL)
    before, behind = expected(opcode, command)
    assert start("copies").send(2, packet) == [(2, before + packet[:14] + behind + TAIL)]
