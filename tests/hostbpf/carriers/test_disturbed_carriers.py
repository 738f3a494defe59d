"""Carriers on a path that changes the order of packets and loses some."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostbpf.carriers import carriers
from hostbpf.clock import SlotClock
from hostbpf.rates.schedules import Schedules
from tests.hostbpf.conftest import Connection, Pair
from tests.hostbpf.relays import apart, relay
from tests.hostbpf.taps import headers_seen, sniff, wait_until
from wire.flow import Flow
from wire.slot_header import LANES, Kind

pytestmark = pytest.mark.root

FLOWS, ROUNDS = 8, 10


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with apart(tmp_path) as hosts:
        yield hosts


@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_order_and_loss(pair: Pair, connect: Callable[..., Connection], loss: float) -> None:
    """Data arrive as they were sent, and feedback is about the right flows. Without loss, the changes that
    arrive add up to the plans, in whatever order."""
    draw = random.Random(2)
    slot_ns = 100 * 10**9
    clock = SlotClock(slot_ns, time.monotonic_ns() - 1000 * slot_ns)  # one slot, at its begin
    with (
        relay(pair, loss, held=0.2) as between,
        carriers.attached(pair.index_a, clock, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, clock, netns=pair.b) as at_b,
        sniff(pair.b) as at_receiver,
    ):
        connections = [connect() for _ in range(FLOWS)]
        both_ways = connections + [Connection(each.receiver, each.sender) for each in connections]
        senders = list(zip(both_ways, [at_a] * FLOWS + [at_b] * FLOWS, strict=True))
        returned: list[carriers.Feedback] = []
        rings = [end.feedback(returned.append) for end in (at_a, at_b)]
        numbers = {Flow.of(each.sender): end.announce(Flow.of(each.sender)) for each, end in senders}
        for _ in range(ROUNDS):
            for connection, end in senders:
                flow = Flow.of(connection.sender)
                rates = [float(draw.randrange(100)) for _ in range(LANES)]
                Schedules(end.schedules, clock, netns=0).set(flow, clock.slot(), rates)
                if draw.random() < 0.5:
                    end.probe(flow)
                connection.transfer(20_000)
        if not loss:
            wait_until(lambda: at_a.counts()["received_feedback"] == at_a.counts()["sent"])
        seen = [header for header in headers_seen(at_receiver) if header.kind == Kind.SCHEDULE]
        for ring in rings:
            ring.consume()
            ring.close()
        counts = at_a.counts(), at_b.counts()
        announced = {flow: at_a.announced(flow) for flow in list(numbers)[:FLOWS]}
        received = [at_b.received(flow) for flow in announced]
    assert between.overtaken > 100
    assert {feedback.flow: feedback.header.flow for feedback in returned} == numbers
    assert all(each["malformed"] == each["not_sent"] == each["unknown_flow"] == 0 for each in counts)
    assert all(0 < each <= ROUNDS * 20_000 for each in received)
    if loss:
        assert between.lost > 20
        return
    assert counts[0]["sent"] == counts[1]["received"] == counts[0]["received_feedback"] >= FLOWS * ROUNDS
    for flow, plan in announced.items():
        total = Counter(dict.fromkeys(plan, 0))
        for header in seen:
            if header.flow == numbers[flow]:
                for number, lane in enumerate(header.lanes):
                    total[header.slot_in(number)] += lane.delta
        assert total == plan
