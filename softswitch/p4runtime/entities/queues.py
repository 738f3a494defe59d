"""What ports hold and drop, as extern entries of types that only softswitch has.

P4Runtime has no entity for queues. An entry's `extern_id` is the port, and its `entry` a CounterData.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from softswitch.contract import Datapath
from softswitch.p4runtime.entities.counts import fill_counts
from softswitch.p4runtime.status import Refused, invalid

DROPPED, WAITING, TOO_LONG = 0x81, 0x82, 0x83
"""Types of entries: what was dropped because the virtual queue was full, what waits there now, and what was
dropped because it exceeds the MTU of the port's link, of which only the packets are counted."""


class Queues:
    """The virtual queues of the ports that have one, and what was too long for the links of ports."""

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath

    def write(self, kind: int, message: Any) -> None:
        """Raise Refused: queues can only be read."""
        raise Refused(StatusCode.UNIMPLEMENTED, "extern entries can only be read")

    def read(self, message: Any) -> Iterator[Any]:
        """Yield what was dropped and what waits, of one type or all, at one port or, for 0, at all."""
        if message.extern_type_id not in (0, DROPPED, WAITING, TOO_LONG):
            raise invalid(f"no extern has type {message.extern_type_id:#x}")
        for type_, port, counted in self._counted():
            if message.extern_type_id in (0, type_) and message.extern_id in (0, port):
                entity, data = p4r.Entity(), p4r.CounterData()
                fill_counts(counted, data)
                entity.extern_entry.extern_type_id = type_
                entity.extern_entry.extern_id = port
                entity.extern_entry.entry.Pack(data)
                yield entity

    def _counted(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Yield types, ports and counts, in packets and bytes."""
        for port, queue in self._datapath.queues().items():
            yield DROPPED, port, (queue.dropped_packets, queue.dropped_bytes)
            yield WAITING, port, (queue.waiting_packets, queue.waiting_bytes)
        for port, packets in self._datapath.too_long().items():
            yield TOO_LONG, port, (packets, 0)
