"""Conversion of what counters have counted, for indexed and direct counters (spec 9.3)."""

from __future__ import annotations

from typing import Any

from softswitch.p4runtime.status import invalid

_MOST = (1 << 63) - 1  # an int64 in P4Runtime; the datapath counts in 64 bits


def counts(message: Any, what: str) -> tuple[int, int]:
    """Return the packets and bytes in a CounterData. Raises Refused if one is negative."""
    for field in ("packet_count", "byte_count"):
        if (value := getattr(message, field)) < 0:
            raise invalid(f"{what}: {field} {value} is negative; it must be from 0 to {_MOST}")
    return message.packet_count, message.byte_count


def fill_counts(counted: tuple[int, int], message: Any) -> None:
    """Write packets and bytes into a CounterData. More than it can hold is written as the most."""
    message.packet_count, message.byte_count = (min(each, _MOST) for each in counted)
