"""Slices, concatenation, casts, structs, calls, return and exit; header stacks in the controls."""

from __future__ import annotations

import random

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, signed, unbits

SLICES, CONCAT, CASTS, COPY, CALLS, RETURN, EXIT, SWAP, SWITCH_VALUE = range(1, 10)
INPUT = (8, 8, 64, 128)
OTHER = (4, 12, 1, 7)
M32, M64, M128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1


def run(start: Start, kind: int, n: int, x: int, y: int) -> tuple[list[int], list[int], list[int]]:
    """Send one packet; the fields of input, of the headers in between, and of output."""
    others = [0xA, 0xBCD, 1, 0x7E, 0x5, 0x432, 0, 0x11]
    packet = ether(
        0x9B00, bits([*zip((kind, n, x, y), INPUT, strict=True), *zip(others, OTHER * 2, strict=True)])
    )
    ((port, output),) = start("language").send(3, packet)
    assert port == 3
    body = output[14:]
    given, between, rest = body[:26], body[26:-28], body[-28:]
    assert kind != SWAP
    return unbits(given, INPUT), unbits(between, OTHER * (len(between) // 3)), unbits(rest, (64, 128, 32))


def samples() -> list[tuple[int, int, int]]:
    rng = random.Random(3)
    return [(rng.getrandbits(8), rng.getrandbits(64), rng.getrandbits(128)) for _ in range(8)]


@pytest.mark.parametrize(("n", "x", "y"), samples())
class TestEachKind:
    def test_slices(self, start: Start, n: int, x: int, y: int) -> None:
        given, _, output = run(start, SLICES, n, x, y)
        expected_x = x & ~0xFF00 & ~(0xF << 60) | n << 8 | (y & 0xF) << 60
        expected_y = y & ~(M64 << 37) | x << 37
        expected_z = y >> 64 & M32 & ~1 | x >> 63
        assert output == [expected_x, expected_y, expected_z | 1 << 31]
        assert given == [SLICES, n + 1 & 255, x, y]

    def test_concatenation(self, start: Start, n: int, x: int, y: int) -> None:
        _, _, output = run(start, CONCAT, n, x, y)
        expected_y = x << 64 | n << 56 | (x & (1 << 48) - 1) << 8 | 0x5A
        expected_z = 0xA << 28 | 0x432 << 16 | 1 << 15 | 0x11 << 8 | 1
        assert output == [(y & M32) << 32 | y >> 96, expected_y, expected_z | 1 << 31]

    def test_casts(self, start: Start, n: int, x: int, y: int) -> None:
        _, _, output = run(start, CASTS, n, x, y)
        low = 1 + (n & 7)
        assert output == [y & M64, signed(x, 64) & M128, (n + 5 & 7) << 29 | low | 1 << 31]

    def test_copies(self, start: Start, n: int, x: int, y: int) -> None:
        _, between, output = run(start, COPY, n, x, y)
        assert between == [0xA, 0xBCD, 1, 0x7E]
        assert output == [y & M64, x, 1 << 31]

    def test_calls(self, start: Start, n: int, x: int, y: int) -> None:
        _, _, output = run(start, CALLS, n, x, y)
        rotated = (x << 2 | x >> 62) & M64
        bumped = rotated + (y >> 64) & M64
        z = (y >> 96) + 1 & M32
        if not y & 1:
            z = z << 1 & M32
        assert output == [bumped ^ y & M64, y & ~M32 | bumped & M32, z | 1 << 31]


@pytest.mark.parametrize(("n", "z", "after"), [(7, 1, 7), (99, 1, 99), (100, 2, 101), (255, 2, 0)])
def test_return_ends_the_control(start: Start, n: int, z: int, after: int) -> None:
    given, _, output = run(start, RETURN, n, 1, 2)
    assert (given[1], output[2]) == (after, z | 1 << 31)


def test_exit_drops_at_once(start: Start) -> None:
    packet = ether(0x9B00, bits([(EXIT, 8), (9, 8), (0, 64), (0, 128), (0, 48)]))
    assert start("language").send(1, packet) == []
    assert run(start, EXIT, 8, 1, 2)[2][2] == 8 | 1 << 31


def test_swap_between_headers(start: Start) -> None:
    packet = ether(0x9B00, bits([(SWAP, 8), (1, 8), (0, 64), (0, 128), (0x3ABC05, 24), (0x7DEF85, 24)]))
    ((_, output),) = start("language").send(1, packet)
    first, second = unbits(output[40:], OTHER), unbits(output[43:], OTHER)
    assert output[:6] == output[6:12] == packet[6:12]
    assert first == [0xC, 0xDEF, 0, 5]
    assert second == [7, 0xABC, 1, 5]
    assert len(output) == len(packet)


@pytest.mark.parametrize(("n", "z"), [(0, 30), (1, 10), (2, 20), (3, 20), (4, 30), (255, 30)])
def test_switch_on_a_value(start: Start, n: int, z: int) -> None:
    assert run(start, SWITCH_VALUE, n, 0, 0)[2][2] == z | 1 << 31


# --- header stacks ---

ITEM = (7, 1, 16)


def stack(start: Start, op: int, argument: int, items: list[tuple[int, int, int]]) -> list[int] | None:
    """Send a stack of items with a command; the fields that come out behind Ethernet, or None."""
    fields = [(op, 8), (argument, 8)]
    for item in items:
        fields += list(zip(item, ITEM, strict=True))
    outputs = start("stack").send(1, ether(0x9300, bits(fields)))
    if not outputs:
        return None
    body = outputs[0][1][14:]
    return unbits(body, (8, 8) + ITEM * ((len(body) - 2) // 3))


A, B, C, D = (1, 0, 0x1111), (2, 0, 0x2222), (3, 0, 0x3333), (4, 1, 0x4444)
LAST = [A, B, (3, 1, 0x3333)]


def test_unknown_command_changes_nothing(start: Start) -> None:
    assert stack(start, 0, 9, [A, B, C, D]) == [0, 9, *A, *B, *C, *D]


def test_push_front_loses_the_last_of_a_full_stack(start: Start) -> None:
    assert stack(start, 1, 0x55, [A, B, C, D]) == [1, 0x55, 0x55, 0, 0xABCD, *A, *B, *C]


def test_push_front_makes_room(start: Start) -> None:
    assert stack(start, 1, 0x55, LAST) == [1, 0x55, 0x55, 0, 0xABCD, *A, *B, 3, 1, 0x3333]


def test_push_front_of_two_leaves_unset_elements_invalid(start: Start) -> None:
    assert stack(start, 3, 0, LAST) == [3, 0, 5, 0, 0x5555, *A, *B]
    assert stack(start, 11, 0, LAST) == [11, 0]


def test_pop_front(start: Start) -> None:
    assert stack(start, 2, 0, [A, B, C, D]) == [2, 0, *B, *C, *D]
    assert stack(start, 4, 0, [A, B, C, D]) == [4, 0, *D]
    assert stack(start, 4, 0, [(9, 1, 9)]) == [4, 0]


def test_copy_of_an_element(start: Start) -> None:
    assert stack(start, 5, 0, [A, B, C, D]) == [5, 0, *A, *B, *A, *D]
    assert stack(start, 5, 0, [A, (2, 1, 0x2222)]) == [5, 0, *A, 2, 1, 0x2222, *A]


def test_copy_of_an_invalid_element_is_invalid(start: Start) -> None:
    assert stack(start, 7, 0, [(7, 1, 7)]) == [7, 0, 7, 1, 7]


def test_invalid_element_is_not_sent(start: Start) -> None:
    assert stack(start, 6, 0, [A, B, C, D]) == [6, 0, *A, *C, *D]


def test_element_to_single_header(start: Start) -> None:
    assert stack(start, 7, 0, LAST) == [7, 0, *LAST[0], *LAST[1], *LAST[2], *B]


def test_swap_of_elements(start: Start) -> None:
    assert stack(start, 8, 0, [A, B, C, D]) == [8, 0, *B, *A, *C, *D]


def test_a_header_made_valid_begins_with_zeros(start: Start) -> None:
    assert stack(start, 9, 0, [(7, 1, 7)]) == [9, 0, 7, 1, 7, 1, 0, 0]


@pytest.mark.parametrize(("depth", "found"), [(1, 0), (2, 0), (3, 3), (4, 4)])
def test_validity_of_elements(start: Start, depth: int, found: int) -> None:
    items = [*[A, B, C, D][: depth - 1], (6, 1, 6)]
    fields = stack(start, 10, 77, items)
    assert fields is not None
    assert fields[1] == found
