"""Header unions, stacks of unions, and varbit fields compared and copied."""

from __future__ import annotations

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import ether

END = b"\0end"


def run(start: Start, op: int, argument: int, body: bytes) -> bytes | None:
    """What comes out behind the command, or None."""
    outputs = start("unions").send(1, ether(0xA400, bytes([op, argument]) + body + END))
    if not outputs:
        return None
    ((_, output),) = outputs
    assert output.endswith(END)
    return output[15 : -len(END)]


SHORT, LONG = bytes([1, 7]), bytes([2, 0, 0, 9])
OPTIONS = bytes([3, 10]) + bytes([4, 0, 1, 255]) + bytes([3, 30])


def text(content: bytes) -> bytes:
    return bytes([5, len(content)]) + content


@pytest.mark.parametrize(
    "body", [b"", SHORT, LONG, OPTIONS, SHORT + OPTIONS, LONG + text(b"a") + text(b"bc")]
)
def test_what_was_parsed_is_sent(start: Start, body: bytes) -> None:
    assert run(start, 0, 9, body) == bytes([9]) + body


def test_one_member_made_valid_makes_the_other_invalid(start: Start) -> None:
    assert run(start, 1, 5, SHORT) == bytes([5, 2, 0, 0, 5])
    assert run(start, 1, 5, LONG) == bytes([5, 1, 5])


def test_an_invalid_union_is_not_sent(start: Start) -> None:
    assert run(start, 2, 5, SHORT + OPTIONS) == bytes([5]) + OPTIONS
    assert run(start, 2, 5, LONG) == bytes([5]) + LONG


def test_elements_of_a_stack_of_unions(start: Start) -> None:
    assert run(start, 3, 2, OPTIONS) == bytes([2]) + bytes([3, 12]) + bytes([4, 0, 2, 1]) + bytes([3, 30])


def test_a_fourth_option_does_not_fit(start: Start) -> None:
    """The parser stops; what it has not taken stays payload."""
    assert run(start, 3, 2, OPTIONS + bytes([3, 1])) == bytes([2, 3, 12, 4, 0, 2, 1, 3, 30, 3, 1])


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [(b"", b"", 1), (b"abc", b"abc", 1), (b"abc", b"abd", 0), (b"abc", b"ab", 0), (b"x" * 16, b"x" * 16, 1)],
)
def test_varbit_comparison(start: Start, first: bytes, second: bytes, equal: int) -> None:
    both = text(first) + text(second)
    assert run(start, 4, 9, both) == bytes([equal]) + both


@pytest.mark.parametrize("content", [b"", b"ab", b"0123456789abcdef"])
def test_varbit_copy(start: Start, content: bytes) -> None:
    assert run(start, 5, 9, text(content) + text(b"xyz")) == bytes([9]) + 2 * text(content)


def test_a_varbit_longer_than_its_field_is_an_error(start: Start) -> None:
    body = text(b"x" * 17) + text(b"")
    assert run(start, 4, 9, body) == bytes([9]) + body
