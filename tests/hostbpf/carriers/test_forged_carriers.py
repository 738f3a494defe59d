"""What somebody else makes of the slot header: dropped and counted, and no flow of ours is any different."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from hostbpf.carriers import carriers
from hostbpf.clock import SlotClock
from hostbpf.rates.schedules import Schedules
from tests.hostbpf.conftest import Connection, Pair
from tests.hostbpf.taps import headers_of, headers_seen, mac, raw_socket, slot_frame, sniff, wait_until
from wire.flow import Flow
from wire.slot_header import (
    EPOCHS,
    ETHERTYPE,
    LANES,
    MAX_U32,
    VERSION,
    Kind,
    Lane,
    SlotHeader,
    epoch_of,
    lane_of,
)

pytestmark = pytest.mark.root

CLOCK = SlotClock.shared(60)
ATTACKS = 3000


def test_what_is_malformed_is_counted(pair: Pair) -> None:
    """Broadcast (all hosts would answer), truncated, another version, kind or lane; feedback for no flow."""
    carried = headers_of(Flow("10.77.0.1", 1, "10.77.0.2", 2))
    good = SlotHeader(kind=Kind.SCHEDULE).pack()
    with carriers.attached(pair.index_b, CLOCK, netns=pair.b) as at_b, raw_socket(pair.a) as raw:
        ethernet = slot_frame(mac(pair.b))
        raw.send(slot_frame(b"\xff" * 6) + good + carried)
        raw.send(ethernet + good[:50])
        raw.send(ethernet + bytes([VERSION - 1 << 4 | Kind.SCHEDULE]) + good[1:] + carried)
        raw.send(ethernet + bytes([VERSION << 4 | 0xF]) + good[1:] + carried)
        raw.send(ethernet + SlotHeader(first_lane=LANES).pack() + carried)
        raw.send(ethernet + good + carried[:19])
        assert at_b.counts()["malformed"] == 5
        assert at_b.counts()["other_version"] == 1
        raw.send(ethernet + SlotHeader(kind=Kind.FEEDBACK, flow=9).pack() + carried)
        assert at_b.counts()["unknown_flow"] == 1
        raw.send(ethernet + good + carried)
        assert at_b.counts()["received"] == 1


def attack(draw: random.Random, victim: Flow) -> bytes:
    """What follows the Ethernet header, about `victim` or about a flow at random."""
    flow = victim
    if draw.random() < 0.5:
        source, destination = (f"10.77.0.{draw.randrange(1, 255)}" for _ in range(2))
        ports = draw.randrange(1 << 16), draw.randrange(1 << 16)
        flow = Flow(source, ports[0], destination, ports[1], draw.choice([1, 6, 17]))
    reverse = Flow(flow.destination, flow.destination_port, flow.source, flow.source_port, flow.protocol)
    base = draw.choice([0, CLOCK.slot(), CLOCK.slot() + 10**6, MAX_U32, draw.randrange(1 << 32)])
    lanes = tuple(
        Lane(
            delta=draw.choice([-MAX_U32, MAX_U32, draw.randrange(-1000, 1000)]),
            load=draw.randrange(1 << 32),
            headroom=draw.randrange(1 << 32),
        )
        for _ in range(LANES)
    )
    header = SlotHeader(
        kind=draw.choice(list(Kind)),
        base_slot=base,
        epoch=draw.choice([epoch_of(base), draw.randrange(EPOCHS)]),
        first_lane=draw.choice([lane_of(base), draw.randrange(LANES + 1)]),
        next_ethertype=draw.choice([0x0800, 0x0800, 0x86DD]),
        lanes=lanes,
    )
    header = replace(header, flow=draw.randrange(1 << 32), bytes_received=draw.randrange(1 << 48))
    frame = bytearray(header.pack() + headers_of(draw.choice([flow, reverse])))
    for _ in range(draw.choice([0, 0, 1, 20])):
        frame[draw.randrange(len(frame))] = draw.randrange(256)
    return draw.choice([bytes(frame), bytes(frame), bytes(frame[: draw.randrange(len(frame))])])


def test_a_hostile_host_changes_no_flow_of_others(pair: Pair, connect: Callable[..., Connection]) -> None:
    """It sends mutated and truncated headers, absurd changes, slots far in the future, and feedback about a
    flow whose addresses it knows, but not its number."""
    connection = connect()
    arriving, leaving = Flow.of(connection.sender), Flow.of(connection.receiver)
    draw = random.Random(3)
    returned: list[carriers.Feedback] = []
    with carriers.attached(pair.index_b, CLOCK, netns=pair.b) as at_b:
        ring = at_b.feedback(returned.append)
        ethernet = slot_frame(mac(pair.b))
        at_b.announce(leaving)
        Schedules(at_b.schedules, CLOCK, netns=0).set(leaving, CLOCK.slot(), [100.0] * 32)
        at_b.probe(leaving)
        at_b.set_onward(arriving, 77)
        with raw_socket(pair.a) as raw:
            raw.send(ethernet + SlotHeader(kind=Kind.SCHEDULE).pack() + headers_of(arriving))
            connection.transfer(50_000)
            before = dict(at_b.schedules), at_b.announced(leaving), at_b.received(arriving)
            for _ in range(ATTACKS):
                raw.send(ethernet + attack(draw, leaving))
            after = dict(at_b.schedules), at_b.announced(leaving), at_b.received(arriving)
            counts = at_b.counts()
            ring.consume()
        assert after == before
        assert before[2] == 50_000
        assert not returned
        refused = counts["malformed"] + counts["other_version"]
        assert refused + counts["unknown_flow"] + counts["received"] == ATTACKS + 1
        assert min(counts["malformed"], counts["unknown_flow"], counts["received"]) > ATTACKS / 10
        with carriers.attached(pair.index_a, CLOCK, netns=pair.a):
            at_b.probe(leaving)
            wait_until(lambda: ring.consume() >= 0 and len(returned) == 1)
        ring.close()
        connection.transfer(1000)
        Connection(connection.receiver, connection.sender).transfer(1000)
    assert returned[0].flow == leaving


def test_a_process_of_the_host_cannot_send_slot_headers(
    pair: Pair, connect: Callable[..., Connection]
) -> None:
    """One with the right to raw sockets, whatever protocol it names to the kernel."""
    connection = connect()
    with (
        carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a,
        raw_socket(pair.a) as raw,
        sniff(pair.b) as tap,
    ):
        frame = slot_frame(mac(pair.b)) + SlotHeader(kind=Kind.SCHEDULE).pack()
        frame += headers_of(Flow.of(connection.sender))
        for protocol in (0, ETHERTYPE, 0x0800):
            with pytest.raises(OSError, match="buffer"):
                raw.sendto(frame, ("eth0", protocol))
        assert headers_seen(tap) == []
        assert at_a.counts()["forged"] == 3
