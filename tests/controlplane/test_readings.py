"""What the API tells of a network when a part of it cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from controlplane import api_pb2 as api
from controlplane.fabric import Fabric, PortCounters
from controlplane.pipeline import Pipeline
from controlplane.queues import Queue, by_link, queue_of, since
from controlplane.readings import Readings
from controlplane.topology import dumbbell
from machine.errors import EntrainError

IN_SWITCH = Queue("left", 2, "left->right", "switch", 3, 1, 1500)
AT_INTERFACE = Queue("left", 2, "left->right", "interface", 4, 2, 3000, 64_000)


OTHER = Path(__file__).parents[1] / "p4/programs/build/hash"


class Partly(Readings):
    """A network whose load tables or counters are `lost`."""

    pipeline = Pipeline.load()

    def __init__(self, lost: str) -> None:
        super().__init__(dumbbell(1), "ecmp", "", {}, queues=lambda: [AT_INTERFACE])
        self.lost = lost
        self._fabric, self._loads = cast(Any, self), cast(Any, self)

    async def read(self) -> list[Any]:
        raise EntrainError(f"{self.lost} are lost")

    async def queues(self) -> list[Queue]:
        return [IN_SWITCH]

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


class Other(Readings):
    """A network whose switches run another program than the fabric's, and its interfaces' `counters`."""

    def __init__(self, counters: Mapping[tuple[str, int], PortCounters]) -> None:
        topology = dumbbell(1)
        super().__init__(topology, "ecmp", "", {}, queues=lambda: [AT_INTERFACE], counters=lambda: counters)
        pipeline = Pipeline.load(OTHER.with_suffix(".p4info.txtpb"), OTHER.with_suffix(".json"))
        self._read(Fabric(topology.with_target("bmv2"), pipeline))


def test_of_another_program_ports_are_read_from_the_kernel_and_the_rest_is_named() -> None:
    ports = [(switch.name, port.number) for switch in dumbbell(1).switches for port in switch.ports]
    loads = first(Other({port: PortCounters(1, 2, 3, 4, number) for number, port in enumerate(ports)}))
    assert not loads.problem
    assert loads.lacking == (
        "the switches run hash, which has no load tables; entrain's program has: "
        "`entrain deploy --target bmv2 --program fabric`"
    )
    assert [port.counters.sent_bytes for port in loads.ports] == [0, 1, 2, 3]
    assert [queue_of(queue) for queue in loads.queues] == [AT_INTERFACE]


def test_of_another_program_on_real_switches_the_ports_are_named_but_not_counted() -> None:
    loads = first(Other({}))
    assert "has no load tables and no counters of ports; " in loads.lacking
    assert len(loads.ports) == 4 and not any(port.HasField("counters") for port in loads.ports)


def test_of_another_program_queues_have_dropped_what_they_have() -> None:
    drops = asyncio.run(Other({}).ListDrops(api.ListDropsRequest(), None))
    assert [queue_of(queue) for queue in drops.queues] == [AT_INTERFACE]
    assert "hash, which has no counters of drops" in drops.lacking


def test_queues_come_with_the_counters() -> None:
    loads = first(Partly("load tables"))
    assert [queue_of(queue) for queue in loads.queues] == [IN_SWITCH, AT_INTERFACE]


def test_a_link_has_dropped_what_all_its_queues_have_and_holds_what_the_longest_does() -> None:
    (queue,) = by_link([IN_SWITCH, AT_INTERFACE])
    assert (queue.dropped_packets, queue.backlog_packets, queue.backlog_bytes) == (7, 2, 3000)
    assert queue.limit_bytes == 64_000


def test_drops_count_from_the_reading_before_or_from_when_the_switch_began_anew() -> None:
    later, anew = replace(IN_SWITCH, dropped_packets=5), replace(AT_INTERFACE, dropped_packets=1)
    found = since([later, anew], [IN_SWITCH, AT_INTERFACE])
    assert [queue.dropped_packets for queue in found] == [2, 1]


class Own(Partly):
    """A network whose switches run a program of the user's own."""

    pipeline = SimpleNamespace(is_fabric=False)

    def lacking(self, what: str) -> str:
        return f"no {what}"

    async def too_long(self) -> dict[tuple[str, int], int]:
        return {("left", 1): 0, ("left", 2): 3}


def test_a_program_without_counted_drops_has_queues_and_packets_that_were_too_long() -> None:
    drops = asyncio.run(Own("").ListDrops(api.ListDropsRequest(), None))
    assert not drops.switches and len(drops.queues) == 2
    assert drops.lacking == "no counters of drops"
    assert [(port.link, port.mtu, port.packets) for port in drops.too_long] == [("left->right", 1500, 3)]
