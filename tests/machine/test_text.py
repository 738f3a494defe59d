"""Names that others choose do not forge lines of a log."""

from __future__ import annotations

from machine.text import escaped

FORGED = "x\n\x1b[2Kentrain: all is well\r\u2028"


def test_what_cannot_be_printed_is_escaped_and_the_rest_stays() -> None:
    assert escaped(FORGED) == r"x\n\x1b[2Kentrain: all is well\r\u2028"
    assert escaped("job \u00fc 4, 10.0.0.1:5") == "job \u00fc 4, 10.0.0.1:5"
    assert escaped("a\nb\x1b", but="\n") == "a\nb\\x1b"
