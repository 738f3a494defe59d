"""QUERY carriers: what the registers hold comes back per port and slot; a lost answer is asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from finsy.proto import p4r

from controlplane import constants as p4
from controlplane.fabric import Fabric
from controlplane.loads import LoadReader, query
from controlplane.pipeline import Pipeline
from controlplane.topology import dumbbell
from machine.errors import EntrainError
from tests.controlplane.kinds import FakeKind
from wire.slot_header import LANES, Kind, SlotHeader, epoch_of

PIPELINE = Pipeline.load()
ETHERNET = 14


class LoadTable:
    """Answers as the fabric's program does: epoch and load of the asked port, per lane."""

    def __init__(self, slots: dict[int, dict[int, int]], lose: int = 0) -> None:
        self.slots = slots
        self.lose = lose

    def __call__(self, packet: Any) -> Any | None:
        if self.lose:
            self.lose -= 1
            return None
        header = SlotHeader.unpack(packet.payload[ETHERNET:])
        assert header.kind is Kind.QUERY
        lanes = list(header.lanes)
        for slot, load in self.slots.get(header.port, {}).items():
            lane = lanes[slot % LANES]
            lanes[slot % LANES] = lane._replace(load=epoch_of(slot) if lane.delta < 0 else load)
        answer = replace(header, hops=1, lanes=tuple(lanes)).pack()
        ids = {
            field.name: field.id for field in PIPELINE.schema.p4info.controller_packet_metadata[0].metadata
        }
        metadata = [
            p4r.PacketMetadata(metadata_id=ids[p4.PACKET_IN_INGRESS_PORT], value=b"\xff"),
            p4r.PacketMetadata(metadata_id=ids[p4.PACKET_IN_PAD], value=b"\0"),
        ]
        return p4r.PacketIn(payload=packet.payload[:ETHERNET] + answer, metadata=metadata)


async def read(kind: FakeKind, table: Callable[[Any], Any]) -> dict[tuple[str, int], dict[int, float]]:
    topology = dumbbell(1)
    fakes = [kind.make(switch.device_id) for switch in topology.switches]
    for fake in fakes:
        fake.answer = table
        await fake.start()
    try:
        served = [replace(s, grpc_port=f.port) for s, f in zip(topology.switches, fakes, strict=True)]
        async with Fabric(replace(topology, switches=tuple(served)), kind.pipeline) as fabric:
            return {(load.switch, load.port): load.slots for load in await LoadReader(fabric).read()}
    finally:
        for fake in fakes:
            await fake.stop()


def test_loads_come_back_per_switch_port_and_slot(kind: FakeKind) -> None:
    found = asyncio.run(read(kind, LoadTable({1: {1234: 70, 1235: 5}, 2: {7: 1}})))
    assert found == {
        ("left", 1): {1234: 70, 1235: 5},
        ("left", 2): {7: 1},
        ("right", 1): {1234: 70, 1235: 5},
        ("right", 2): {7: 1},
    }


def test_a_lost_answer_is_asked_for_again(kind: FakeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.loads.ANSWER_TIMEOUT_S", 0.2)
    found = asyncio.run(read(kind, LoadTable({1: {3: 9}}, lose=2)))
    assert found["left", 1] == {3: 9}


def test_a_switch_that_never_answers_is_named(kind: FakeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.loads.ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(EntrainError, match="no answer to 3 QUERY carriers for port 1"):
        asyncio.run(read(kind, LoadTable({}, lose=10**6)))


def test_a_load_is_not_told_under_the_slot_before(kind: FakeKind) -> None:
    """The lane's next slot begins while the loads are read; and again, until nothing changes."""
    table = LoadTable({1: {1234: 70}, 2: {7: 1}})
    asked = 0

    def answer(packet: Any) -> Any:
        nonlocal asked
        port = SlotHeader.unpack(packet.payload[ETHERNET:]).port
        if port == 1:
            asked += 1
            if asked in (2, 3, 5, 6):  # of two switches: between the epochs and the loads
                table.slots[1] = {slot + LANES: load + 1 for slot, load in table.slots[1].items()}
        return table(packet)

    found = asyncio.run(read(kind, answer))
    ((slot, load),) = table.slots[1].items()
    assert set(found["left", 1].items()) <= {(slot, load)}
    assert found["left", 2] == {7: 1}


def test_a_query_names_its_port_and_number() -> None:
    header = SlotHeader.unpack(query(7, 42, epochs=False)[ETHERNET:])
    assert (header.kind, header.port, header.flow) == (Kind.QUERY, 7, 42)
