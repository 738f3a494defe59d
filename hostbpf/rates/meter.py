"""What flows really sent, per slot: the meter beside every rate experiment."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ebpf import Map, Object, compile_cached
from ebpf.tc import Direction
from hostbpf import SOURCES
from hostbpf.clock import SlotClock
from hostbpf.flow import KEY, flow_of
from wire.flow import Flow

SOURCE = SOURCES / "slot_meter.bpf.c"


@dataclass(frozen=True)
class Sent:
    """Payload bytes of a flow in one slot, and when the first of them left (CLOCK_MONOTONIC)."""

    payload_bytes: int
    first_ns: int


class Meter:
    """Counts payload bytes per flow and slot at one interface."""

    def __init__(self, entries: Map, base_slot: int) -> None:
        self._entries = entries
        self._base_slot = base_slot

    def read(self) -> dict[tuple[Flow, int], Sent]:
        """What was sent, by flow and slot number."""
        return {entry: sent for _, entry, sent in self._read()}

    def take(self, before: int) -> dict[tuple[Flow, int], Sent]:
        """What was sent in slots below `before`, each time only what is new. These slots must have ended."""
        result = {}
        for key, (flow, slot), sent in self._read():
            if slot < before:
                result[flow, slot] = sent
                del self._entries[key]
        return result

    def _read(self) -> Iterator[tuple[bytes, tuple[Flow, int], Sent]]:
        for key, value in self._entries.lookup_batch():
            (slot,) = struct.unpack_from("=Q", key, KEY.size)
            entry = flow_of(KEY.unpack(key)), self._base_slot + slot
            yield key, entry, Sent(*struct.unpack("=QQ", value))


@contextlib.contextmanager
def metered(
    clock: SlotClock, ifindex: int, *, netns: str | None = None, direction: Direction = "egress"
) -> Iterator[Meter]:
    """Within, what leaves interface `ifindex` of `netns`, or arrives there, is counted by `clock`'s slots.

    What leaves is counted before it is queued; what a queue holds back is to be measured where it arrives.
    """
    base_slot = clock.slot()
    with Object.open(compile_cached(SOURCE)) as obj:
        obj.set_rodata("start_ns", struct.pack("=Q", clock.start_ns(base_slot)))
        obj.set_rodata("slot_ns", struct.pack("=Q", clock.slot_ns))
        obj.load()
        with obj.programs["measure"].attach_interface(ifindex, direction, netns):
            yield Meter(obj.maps["meter"], base_slot)
