"""Carriers at the host: announcing schedules to the switches, and the feedback that comes back.

One `Carriers` per host interface. Its programs end with it, or with the process where the kernel has tcx
links (Linux 6.6); otherwise the owner records the clsact qdisc.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebpf import Codec, EbpfError, Map, Object, RingBuffer, TypedMap, compile_cached
from ebpf.tc import Direction
from hostbpf.slots import KEY, Flow, flow_key, flow_of
from machine.errors import BadInput
from wire.slot_header import LANES, SlotHeader

SOURCE = Path(__file__).parent / "bpf" / "carrier.bpf.c"
COUNTS = (
    "sent",
    "sent_feedback",
    "received",
    "received_feedback",
    "not_sent",
    "malformed",
    "unknown_flow",
    "not_delivered",
)
MARKS = range(0xE57A1401, 0xE57A1403)  # socket marks that the programs use themselves


@dataclass(frozen=True)
class Feedback:
    """What came back about a flow: its path's load and headroom per slot, and how far the receiver is."""

    flow: Flow
    header: SlotHeader


class _Announcer(NamedTuple):
    stamp: int
    number: int


_ANNOUNCER = Codec("=QI", _Announcer)


class Carriers:
    """The slot header's programs on one interface."""

    def __init__(self, obj: Object) -> None:
        self._announcers = TypedMap(obj.maps["announcers"], KEY, _ANNOUNCER)
        self._received = obj.maps["received_flows"]
        self._counts = obj.maps["counts"]
        self._feedbacks = obj.maps["feedbacks"]
        self.schedules = obj.maps["schedules"]

    def announce(self, flow: Flow, number: int) -> None:
        """Let `flow` announce its schedule from its next packet on, as flow `number` of this host.

        Raises BadInput for a number beyond 32 bits, EbpfError when the map is full.
        """
        if not 0 <= number < 1 << 32:
            raise BadInput(f"flow number {number}: must fit 32 bits")
        self._announcers[flow_key(flow)] = _Announcer((1 << 64) - 1, number)

    def announced(self, flow: Flow) -> dict[int, int]:
        """What `flow` has announced last, in rate units by slot. KeyError when it does not announce."""
        raw = self._announcers.raw[KEY.pack(flow_key(flow))]
        lanes = struct.iter_unpack("=II", raw[_ANNOUNCER.size + 4 :])
        return {epoch * LANES + lane: rate for lane, (epoch, rate) in enumerate(lanes) if epoch}

    def withdraw(self, flow: Flow) -> None:
        """Announce `flow` no more. What it announced ages within the horizon."""
        self._announcers.pop(flow_key(flow), None)

    def feedback(self, callback: Callable[[Feedback], None]) -> RingBuffer:
        """A ring buffer that calls `callback` with each feedback when polled; the caller closes it."""

        def decode(data: bytes) -> None:
            callback(Feedback(flow_of(KEY.unpack(data)), SlotHeader.unpack(data[KEY.size :])))

        return RingBuffer(self._feedbacks, decode)

    def counts(self) -> dict[str, int]:
        """How many carriers were sent, received and refused, by `COUNTS`."""
        return {
            name: sum(
                int.from_bytes(each, "little") for each in self._counts.lookup_cpus(struct.pack("=I", i))
            )
            for i, name in enumerate(COUNTS)
        }


@contextlib.contextmanager
def attached(
    ifindex: int, *, netns: str | None = None, schedules: Map | None = None, cookie: int = 0
) -> Iterator[Carriers]:
    """Within, carriers leave and end at interface `ifindex` of `netns`.

    `schedules` is the map to announce from, with `cookie` as the namespace in its keys (that of
    `hostbpf.slots.pacing_registered`); without it the programs have their own (cookie 0).
    """
    with contextlib.ExitStack() as stack:
        obj = stack.enter_context(Object.open(compile_cached(SOURCE)))
        obj.set_rodata("netns", struct.pack("=Q", cookie))
        if schedules is not None:
            obj.reuse_map("schedules", schedules)
        obj.load()
        directions: tuple[Direction, Direction] = ("egress", "ingress")
        for direction in directions:
            program = obj.programs[f"carrier_{direction}"]
            try:
                stack.enter_context(program.attach_tcx(ifindex, direction, netns))
            except EbpfError:
                stack.callback(program.attach_tc(ifindex, direction, netns, replace=True).detach)
        yield Carriers(obj)
