"""Switches with real interfaces do what the same program does without a network."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from finsy import P4CounterEntry

from tests.p4.differential import NAMES, mask
from tests.p4.kinds import program
from tests.p4.live import Live, live_switch
from tests.p4.netless import Netless
from tests.p4.packets import bits, ether, unbits
from tests.p4.random_entries import RandomEntries
from tests.p4.random_fabric import fabric_entities, fabric_packet
from tests.p4.random_packets import GENERATORS, packets
from tests.p4.resizing import frames, outputs
from tests.p4.targets import PORTS, PROGRAMS, Batch, Injected, Program, Target

pytestmark = pytest.mark.root

COUNT = 80


@pytest.fixture(scope="module")
def softswitch() -> Iterator[Callable[[Program], Target]]:
    """Puts a program on a running softswitch."""
    with live_switch("softswitch") as run:
        yield run


def entities_of(name: str, target: Target) -> list[Any]:
    entities = RandomEntries(target.client.schema.p4info, 5).all()
    return fabric_entities(target.client.schema, entities) if name == "fabric" else entities


def packets_of(name: str) -> list[Injected]:
    generate = fabric_packet if name == "fabric" else GENERATORS[name]
    made = packets(name, generate, random.Random(9), COUNT)
    return [packet for packet in made if not refused_by_kernel(name, packet[1])]


def refused_by_kernel(name: str, packet: bytes) -> bool:
    """Whether it is a tagged frame too short for the kernel, or cut by replicate.p4 to less than Ethernet."""
    if packet[12:14] in (b"\x81\x00", b"\x88\xa8"):
        return len(packet) < 20
    return name == "replicate" and len(packet) >= 19 and packet[14] & 32 != 0 and packet[17:19] < b"\0\x0e"


def masked(name: str, batch: Batch) -> tuple[list[list[tuple[int, bytes]]], list[bytes]]:
    outputs = [sorted((port, mask(name, data)) for port, data in each) for each in batch.outputs]
    return outputs, [mask(name, data) for data in batch.controller]


def assert_live_equals_netless(name: str, live: Target) -> None:
    sent = packets_of(name)
    with Netless(program(name)) as netless:
        for target in (live, netless):
            target.client.insert(*entities_of(name, live))
        ours, reference = masked(name, live.send_batch(sent)), masked(name, netless.send_batch(sent))
    for packet, one, other in zip(sent, ours[0], reference[0], strict=True):
        assert one == other, f"port {packet[0]}: {packet[1].hex()}"
    assert ours[1] == reference[1]


@pytest.mark.parametrize("name", NAMES)
def test_softswitch_with_interfaces(softswitch: Callable[[Program], Target], name: str) -> None:
    assert_live_equals_netless(name, softswitch(program(name)))


@pytest.mark.bmv2
@pytest.mark.parametrize("name", ["parser", "cpu", "replicate", "fabric"])
def test_bmv2_with_interfaces(name: str) -> None:
    # A new process each: a new pipeline on simple_switch_grpc keeps the multicast groups of the old one.
    with live_switch("simple_switch_grpc") as run:
        assert_live_equals_netless(name, run(program(name)))


def assert_resizes(live: Target) -> None:
    """For a fifth of the frames, which take milliseconds each: any number parsed, and any difference."""
    sent = list(itertools.islice(frames(seed=2), 0, None, 5))
    for (port, packet), output in zip(sent, live.send_batch(sent).outputs, strict=True):
        assert output == outputs(port, packet, least=14), packet.hex()


@pytest.mark.slow
def test_softswitch_replaces_what_was_parsed(softswitch: Callable[[Program], Target]) -> None:
    assert_resizes(softswitch(PROGRAMS["resize"]))


@pytest.mark.slow
@pytest.mark.bmv2
def test_bmv2_replaces_what_was_parsed() -> None:
    with live_switch("simple_switch_grpc") as run:
        assert_resizes(run(PROGRAMS["resize"]))


def test_frames_with_a_vlan_tag_keep_it(softswitch: Callable[[Program], Target]) -> None:
    target = softswitch(PROGRAMS["language"])
    for ethertype in (0x8100, 0x88A8):
        packet = ether(ethertype, bytes.fromhex("a00f0800") + b"tagged payload")
        assert target.send(2, packet) == [(2, packet)]


def test_the_parser_sees_a_vlan_tag(softswitch: Callable[[Program], Target]) -> None:
    target = softswitch(PROGRAMS["parser"])
    packet = ether(0x8100, bytes.fromhex("00051234") + b"tagged payload")
    assert target.send(2, packet) == [(2, bytes([0, 1, 0, 0, 0, 0, 0, 0]) + packet)]


@pytest.mark.parametrize("size", [14, 15, 59, 60, 61, 1499, 1514, 4096, 9000, 9500])
def test_frames_of_every_size(softswitch: Callable[[Program], Target], size: int) -> None:
    target = softswitch(PROGRAMS["language"])
    packet = ether(0x1234, random.Random(size).randbytes(size - 14))
    assert target.send(3, packet) == [(3, packet)]


def test_a_burst_keeps_its_order(softswitch: Callable[[Program], Target]) -> None:
    target = softswitch(PROGRAMS["language"])
    sent = [ether(0x1234, number.to_bytes(2, "big")) for number in range(200)]
    batch = target.send_batch([(1, packet) for packet in sent])
    assert batch.outputs == [[(1, packet)] for packet in sent]


def test_registers_and_counters_lose_nothing_between_processors(
    softswitch: Callable[[Program], Target],
) -> None:
    """Several senders at once, each on a processor of its own: every packet that came out has counted once.

    A register is read and written in one action here: softswitch, other than BMv2 with its single ingress
    thread, promises no more.
    """
    target = softswitch(PROGRAMS["state"])
    assert isinstance(target, Live)
    both_registers = ether(0x9C04, bits([(0, 8), (9, 8), (0, 128), (0, 128)]))
    passed = target.flood(dict.fromkeys(PORTS, both_registers), 3000)
    assert passed > 10000, "the machine lost too many packets to say anything"
    ((_, output),) = target.send(1, ether(0x9C01, bits([(0, 8), (0, 8), (0, 128), (0, 128)])))
    assert unbits(output[14:], (8, 8, 128, 128))[3] == passed
    (counted,) = target.client.read(P4CounterEntry("both", index=9))
    assert counted.data is not None
    assert counted.data.packet_count == passed
    assert counted.data.byte_count == passed * len(both_registers)
