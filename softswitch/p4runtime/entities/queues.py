"""The ports' virtual queues, as extern entries of two types that only softswitch has.

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

DROPPED, WAITING = 0x81, 0x82
"""Types of entries: what was dropped because the queue was full, and what waits now."""


class Queues:
    """The virtual queues of the ports that have one."""

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath

    def write(self, kind: int, message: Any) -> None:
        """Raise Refused: queues can only be read."""
        raise Refused(StatusCode.UNIMPLEMENTED, "extern entries can only be read")

    def read(self, message: Any) -> Iterator[Any]:
        """Yield what was dropped and what waits, of one type or both, at one port or, for 0, at all."""
        if message.extern_type_id not in (0, DROPPED, WAITING):
            raise invalid(f"no extern has type {message.extern_type_id:#x}")
        for port, queue in self._datapath.queues().items():
            if message.extern_id not in (0, port):
                continue
            for type_, counted in (
                (DROPPED, (queue.dropped_packets, queue.dropped_bytes)),
                (WAITING, (queue.waiting_packets, queue.waiting_bytes)),
            ):
                if message.extern_type_id in (0, type_):
                    entity, data = p4r.Entity(), p4r.CounterData()
                    fill_counts(counted, data)
                    entity.extern_entry.extern_type_id = type_
                    entity.extern_entry.extern_id = port
                    entity.extern_entry.entry.Pack(data)
                    yield entity
