"""Names that others choose do not forge lines of a log."""

from __future__ import annotations

from machine.text import MOST_METADATA, escaped, sendable

FORGED = "x\n\x1b[2Kentrain: all is well\r\u2028"


def test_what_cannot_be_printed_is_escaped_and_the_rest_stays() -> None:
    assert escaped(FORGED) == r"x\n\x1b[2Kentrain: all is well\r\u2028"
    assert escaped("job \u00fc 4, 10.0.0.1:5") == "job \u00fc 4, 10.0.0.1:5"
    assert escaped("a\nb\x1b", but="\n") == "a\nb\\x1b"


def test_a_message_is_cut_to_what_clients_accept() -> None:
    assert sendable("short") == "short"
    assert sendable("a" * MOST_METADATA) == "a" * MOST_METADATA
    assert sendable("a" * 20_000) == "a" * (MOST_METADATA - 3) + "..."
    assert len(sendable("\u00fc" * 20_000)) == MOST_METADATA // 6
    assert sendable("\ud800", 100) == "?"
