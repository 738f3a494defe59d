"""Carriers on a path that changes the order of packets and loses some."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf import in_netns
from hostbpf import carriers
from hostbpf.slots import Flow, Schedules, SlotClock
from machine.record import Record, Resource
from tests.hostbpf.taps import headers_seen, sniff, wait_until
from wire.slot_header import LANES, Kind

from .conftest import A, B, Connection, Pair

pytestmark = pytest.mark.root

FLOWS, ROUNDS = 8, 10
HELD_MS = 5


class Relay:
    """Joins two interfaces, by a thread that loses frames, and lets others overtake."""

    def __init__(self, ends: tuple[socket.socket, socket.socket], loss: float, held: float) -> None:
        self._ends = ends
        self._draw = random.Random(1)
        self._loss, self._held = loss, held
        self._waiting: dict[socket.socket, bytes] = {}
        self.overtaken = self.lost = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        other = {self._ends[0]: self._ends[1], self._ends[1]: self._ends[0]}
        while not self._ended.is_set():
            ready = select.select(self._ends, [], [], HELD_MS / 1000)[0]
            for end in ready:
                frame, address = end.recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING:
                    self._forward(other[end], frame)
            if not ready:
                for end, frame in self._waiting.items():
                    end.send(frame)
                self._waiting.clear()

    def _forward(self, end: socket.socket, frame: bytes) -> None:
        if self._draw.random() < self._loss:
            self.lost += 1
        elif end not in self._waiting and self._draw.random() < self._held:
            self._waiting[end] = frame
        else:
            end.send(frame)
            if self._draw.random() < 0.5 and (held := self._waiting.pop(end, None)):
                end.send(held)
                self.overtaken += 1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """As conftest's, but what joins the hosts is in a namespace between them, for a `Relay`."""
    names = [f"th{each}{os.getpid()}" for each in "axb"]
    with Record("test-hostbpf", records=tmp_path / "records") as record:
        for name in names:
            record.own(Resource("netns", name))
            subprocess.run(["ip", "netns", "add", name], check=True)
        for name, address, inner in ((names[0], A, "left"), (names[2], B, "right")):
            for command in (
                f"-n {name} link add eth0 type veth peer name {inner} netns {names[1]}",
                f"-n {name} addr add {address}/24 dev eth0",
                f"-n {name} link set eth0 up",
                f"-n {names[1]} link set {inner} up",
                f"netns exec {name} ethtool -K eth0 tx off tso off gso off gro off",
            ):
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
        index_a, index_b = (
            in_netns(name, lambda: socket.if_nametoindex("eth0")) for name in (names[0], names[2])
        )
        yield Pair(names[0], names[2], index_a, index_b)


@contextlib.contextmanager
def relay(pair: Pair, loss: float, held: float) -> Iterator[Relay]:
    """Within, the hosts are joined."""
    between = pair.a.replace("tha", "thx")
    with sniff(between, "left") as left, sniff(between, "right") as right:
        running = Relay((left, right), loss, held)
        try:
            yield running
        finally:
            running.close()


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
                    total[lane.epoch * LANES + number] += lane.delta
        assert total == plan
