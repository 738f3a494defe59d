"""What the API tells of a network when a part of it cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from controlplane import api_pb2 as api
from controlplane.fabric import PortCounters
from controlplane.readings import Readings
from controlplane.topology import dumbbell
from machine.errors import EntrainError


class Partly(Readings):
    """A network whose load tables or counters are `lost`."""

    def __init__(self, lost: str) -> None:
        super().__init__(dumbbell(1), "ecmp", "", {})
        self.lost = lost
        self._fabric, self._loads = cast(Any, self), cast(Any, self)

    async def read(self) -> list[Any]:
        raise EntrainError(f"{self.lost} are lost")

    async def counters(self) -> dict[tuple[str, int], PortCounters]:
        if self.lost == "counters":
            raise EntrainError("counters are lost")
        ports = [(switch.name, port.number) for switch in self.topology.switches for port in switch.ports]
        return {port: PortCounters(1, 2, 3, 4, number) for number, port in enumerate(ports)}


def first(readings: Readings) -> api.Loads:
    async def ask() -> api.Loads:
        request = api.WatchLoadsRequest(interval_ms=1000, counters=True)
        async for loads in readings.WatchLoads(request, None):
            return loads
        raise AssertionError

    return asyncio.run(ask())


def test_ports_are_counted_though_load_tables_cannot_be_read() -> None:
    loads = first(Partly("load tables"))
    assert loads.problem == "load tables are lost"
    assert [port.counters.sent_bytes for port in loads.ports] == [0, 1, 2, 3]
    assert {port.link for port in loads.ports} >= {"left->right", "right->left"}
    assert not any(port.slots for port in loads.ports)


def test_a_switch_that_answers_nothing_is_told() -> None:
    loads = first(Partly("counters"))
    assert loads.problem == "counters are lost" and not loads.ports
