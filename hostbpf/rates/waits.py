"""Why flows that pace themselves sent less, or later, than their schedule says, as the kernel tells it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ebpf import Codec, Object, RingBuffer, compile_cached
from hostbpf import SOURCES
from hostbpf.flow import KEY, flow_of
from wire.flow import Flow

SOURCE = SOURCES / "slot_waits.bpf.c"
TOLERANCE_NS = 30_000
"""Waits that are shorter are not told: the timer of a departure on a processor that is free is not later."""


class Cause(IntEnum):
    """What a flow waited for: `enum cause` of slot_waits.bpf.c."""

    PROCESSOR = 0
    """For a processor, to run the timer of its departure: all were busy, or the hypervisor had taken it."""
    DATA = 1
    """For its sender to write something."""
    RECEIVER = 2
    """For the receiver's window."""
    WINDOW = 3
    """For the congestion window: acknowledgements are late, or something was lost."""
    REPEATED = 4
    """No wait: these bytes left for a second time."""
    UNASKED = 5
    """The kernel did not ask the control for the pace: of bytes that left so, or for the wait behind them.
    Some kernels skip eBPF in the context of process 1 (KNOWN_ISSUES.md)."""


class _Wait(NamedTuple):
    """`struct wait`, which follows a flow's key."""

    from_ns: int
    until_ns: int
    bytes: int
    cause: int


_WAIT = Codec("=QQII", _Wait)


@dataclass(frozen=True)
class Wait:
    """A flow that was due to send at `from_ns` sent `payload_bytes` at `until_ns` (CLOCK_MONOTONIC); both are
    the same where these bytes are what is told."""

    flow: Flow
    cause: Cause
    from_ns: int
    until_ns: int
    payload_bytes: int

    def within(self, start_ns: int, end_ns: int) -> int:
        """Return how many nanoseconds of the wait are between these times."""
        return max(0, min(self.until_ns, end_ns) - max(self.from_ns, start_ns))


class Waits:
    """The waits of flows that leave by one interface."""

    def __init__(self, buffer: RingBuffer, told: list[bytes]) -> None:
        self._buffer = buffer
        self._told = told

    def collect(self) -> None:
        """Make room for further waits: the kernel keeps the latest 60,000 or so."""
        self._buffer.consume()

    def take(self) -> list[Wait]:
        """Return the waits that ended since the last call, in order."""
        self.collect()
        told = [(KEY.unpack(raw[: KEY.size]), _WAIT.unpack(raw[KEY.size :])) for raw in self._told]
        self._told.clear()
        return [
            Wait(flow_of(key), Cause(each.cause), each.from_ns, each.until_ns, each.bytes)
            for key, each in told
        ]


@contextlib.contextmanager
def explained(ifindex: int, *, netns: str | None = None, tolerance_ns: int = TOLERANCE_NS) -> Iterator[Waits]:
    """Within, waits of TCP flows that leave by interface `ifindex` of `netns` are told.

    A wait is a gap between two departures that is longer than the socket's pacing rate asks for.
    """
    told: list[bytes] = []
    with Object.open(compile_cached(SOURCE)) as obj, contextlib.ExitStack() as stack:
        obj.set_rodata("tolerance_ns", struct.pack("=Q", tolerance_ns))
        obj.load()
        obj.check_record("flow_key", KEY)
        obj.check_record("wait", _WAIT)
        obj.check_enum("cause", {f"WAIT_{each.name}": each for each in Cause})
        buffer = RingBuffer(obj.maps["waits"], told.append)
        stack.callback(buffer.close)
        stack.enter_context(obj.programs["explain"].attach_interface(ifindex, "egress", netns))
        yield Waits(buffer, told)
