"""Carriers leave from a flow's own packets, end at the receiver, and feedback comes back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from ebpf import EbpfError, in_netns
from hostbpf.carriers import carriers
from hostbpf.clock import SlotClock
from hostbpf.rates.schedules import Schedules
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from mininet_topos.loss import lossy
from tests.hostbpf.conftest import Connection, Pair
from tests.hostbpf.taps import headers_seen, sniff, wait_until
from wire.flow import Flow
from wire.slot_header import HEADER_BYTES, LANES, Kind, epoch_of

pytestmark = pytest.mark.root

CLOCK = SlotClock.shared(200)
PLANNED = 30
"""So many slots are planned: six seconds, longer than a busy machine keeps a test waiting."""


@pytest.fixture
def slow() -> SlotClock:
    """A slot that outlasts the test."""
    slot_ns = 100 * 10**9
    return SlotClock(slot_ns, time.monotonic_ns() - 1000 * slot_ns)


@pytest.mark.parametrize("offload", ["on", "off"])
def test_carrier_announces_and_feedback_returns(
    pair: Pair, connect: Callable[..., Connection], offload: str
) -> None:
    for name in (pair.a, pair.b):
        pair.run(name, "ethtool", "-K", "eth0", "tso", offload, "gso", offload, "gro", offload)
    connection = connect()
    flow = Flow.of(connection.sender)
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, CLOCK, netns=pair.b) as at_b,
        sniff(pair.b) as tap,
    ):
        ring = at_a.feedback(returned.append)
        schedules = Schedules(at_a.schedules, CLOCK, netns=0)
        at_a.announce(flow, 42)
        base = CLOCK.slot()
        schedules.set(flow, base, [100] * PLANNED)
        connection.transfer(2_000_000)
        wait_until(lambda: ring.poll(10) > 0)
        ring.close()
        seen = [header for header in headers_seen(tap) if header.kind == Kind.SCHEDULE]
        assert at_a.counts()["sent"] == len(seen) == at_b.counts()["received"]
        assert at_a.counts()["received_feedback"] >= 1
        assert at_a.counts()["not_sent"] == 0
    first = seen[0]
    assert first.flow == 42
    assert first.base_slot >= base
    for slot in range(first.base_slot, first.base_slot + LANES):
        lane = slot % LANES
        assert first.epoch_in(lane) == epoch_of(slot)
        assert first.lanes[lane].delta == (100 if slot < base + PLANNED else 0)
    assert returned[0].flow == flow
    assert returned[0].header.base_slot == first.base_slot
    assert 0 <= returned[0].header.bytes_received <= 2_000_000


def test_deltas_add_up_to_the_schedule(pair: Pair, connect: Callable[..., Connection]) -> None:
    """Whatever is changed and when: the sum of announced changes per slot is what was planned last."""
    connection = connect()
    flow = Flow.of(connection.sender)
    table: dict[int, int] = {}
    plans = ([50] * PLANNED, [80] * PLANNED, [0] * PLANNED, [*range(10, 10 * PLANNED + 1, 10)])
    with carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a, sniff(pair.b) as tap:
        schedules = Schedules(at_a.schedules, CLOCK, netns=0)
        at_a.announce(flow, 1)
        base = CLOCK.slot()
        for plan in plans:
            schedules.set(flow, base, plan)
            connection.transfer(1000)
            now = CLOCK.slot()
            wait_until(lambda now=now: CLOCK.slot() > now)  # type: ignore[misc]
        last = 0
        for header in headers_seen(tap):
            for slot in range(header.base_slot, header.base_slot + LANES):
                assert header.epoch_in(slot % LANES) == epoch_of(slot)
                table[slot] = table.get(slot, 0) + header.lanes[slot % LANES].delta
            last = header.base_slot
    assert len(table) >= LANES
    for slot in range(last, last + LANES):
        assert table[slot] == (plans[-1][slot - base] if slot < base + PLANNED else 0)


def test_one_carrier_per_slot(pair: Pair, connect: Callable[..., Connection]) -> None:
    connection = connect()
    flow = Flow.of(connection.sender)
    with carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a, sniff(pair.b) as tap:
        schedules = Schedules(at_a.schedules, CLOCK, netns=0)
        at_a.announce(flow, 1)
        schedules.set(flow, CLOCK.slot(), [1000] * PLANNED)

        def three_have_left() -> bool:
            connection.transfer(10_000)
            return at_a.counts()["sent"] >= 3

        wait_until(three_have_left)
        slots = [header.base_slot for header in headers_seen(tap)]
    assert len(slots) == len(set(slots))
    assert slots == sorted(slots)


def test_under_a_quiet_schedule_carriers_ask_and_announce_nothing(
    pair: Pair, connect: Callable[..., Connection]
) -> None:
    connection = connect()
    flow = Flow.of(connection.sender)
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, CLOCK, netns=pair.b),
        sniff(pair.b) as tap,
    ):
        ring = at_a.feedback(returned.append)
        schedules = Schedules(at_a.schedules, CLOCK, netns=0)
        at_a.announce(flow, 42)
        schedules.set(flow, CLOCK.slot(), [100] * PLANNED, quiet=True)
        connection.transfer(20_000)
        wait_until(lambda: ring.poll(10) > 0)
        ring.close()
        seen = [header for header in headers_seen(tap) if header.kind == Kind.SCHEDULE]
    assert returned[0].flow == flow
    assert seen
    assert not any(lane.delta for header in seen for lane in header.lanes)


def test_other_flows_send_no_carriers(pair: Pair, connect: Callable[..., Connection]) -> None:
    connection, other = connect(), connect()
    with carriers.attached(pair.index_a, CLOCK, netns=pair.a) as at_a, sniff(pair.b) as tap:
        schedules = Schedules(at_a.schedules, CLOCK, netns=0)
        flow = Flow.of(connection.sender)
        at_a.announce(flow, 1)
        schedules.set(flow, CLOCK.slot(), [100] * PLANNED)
        other.transfer(100_000)
        assert headers_seen(tap) == []
        at_a.withdraw(flow)
        connection.transfer(100_000)
        assert headers_seen(tap) == []


@pytest.mark.parametrize(
    ("number", "probability"),
    [(1, 0.0), (64, 0.0), (64, 0.05), pytest.param(1000, 0.0, marks=pytest.mark.slow)],
)
def test_many_flows_both_ways(
    pair: Pair, connect: Callable[..., Connection], number: int, probability: float
) -> None:
    """Every flow announces, in both directions, with loss and without: what arrives was sent, nothing is
    malformed, feedback is for announced flows only, and the applications' bytes are what they were."""
    connections = [connect("reno") for _ in range(number)]
    clock = SlotClock.shared(patience(1000))  # schedules end after 30 slots
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, clock, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, clock, netns=pair.b) as at_b,
        lossy([pair.index_a], probability, netns=pair.a),
        lossy([pair.index_b], probability, netns=pair.b),
    ):
        ring = at_a.feedback(returned.append)
        flows = {}
        for index, connection in enumerate(connections):
            for end, sock in ((at_a, connection.sender), (at_b, connection.receiver)):
                flow = Flow.of(sock)
                end.announce(flow, index)
                Schedules(end.schedules, clock, netns=0).set(flow, clock.slot(), [1000.0] * 30)
            flows[Flow.of(connection.sender)] = index
        for connection in connections:
            connection.transfer(20_000)
            Connection(connection.receiver, connection.sender).transfer(20_000)
        while ring.poll(50):
            pass
        if not probability:
            wait_until(lambda: at_a.counts()["sent"] == at_b.counts()["received"])
            wait_until(lambda: at_b.counts()["sent"] == at_a.counts()["received"])
            while ring.poll(50):
                pass
        ring.close()
        a, b = at_a.counts(), at_b.counts()
    for sent, received in ((a, b), (b, a)):
        assert sent["sent"] >= number
        if probability:
            assert 0.7 * sent["sent"] <= received["received"] <= sent["sent"]
        else:
            assert received["received"] == sent["sent"]
            assert received["received_feedback"] >= number
        assert sent["malformed"] == sent["not_sent"] == sent["unknown_flow"] == sent["not_delivered"] == 0
    assert all(flows[feedback.flow] == feedback.header.flow for feedback in returned)
    if not probability:
        assert {feedback.flow for feedback in returned} == set(flows)


def test_a_probe_announces_and_brings_feedback_though_the_flow_is_silent(
    pair: Pair, connect: Callable[..., Connection], slow: SlotClock
) -> None:
    """It counts as the announcement of the slot and version, goes again with no change when asked again, and
    the connection does not notice."""
    connection = connect()
    flow = Flow.of(connection.sender)
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, slow, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, slow, netns=pair.b) as at_b,
        sniff(pair.b) as tap,
    ):
        ring = at_a.feedback(returned.append)
        at_a.announce(flow, 42)
        at_a.probe(flow)  # before it has a schedule: all zero
        Schedules(at_a.schedules, slow, netns=0).set(flow, slow.slot(), [70] * 20)
        at_b.set_onward(flow, 123_456)
        at_a.probe(flow)
        at_a.probe(flow)
        connection.transfer(100_000)
        at_a.probe(flow)
        wait_until(lambda: ring.poll(10) >= 0 and len(returned) == 4)
        ring.close()
        seen = [header for header in headers_seen(tap) if header.kind == Kind.SCHEDULE]
        assert [{lane.delta for lane in header.lanes} for header in seen] == [{0}, {70}, {0}, {0}]
        assert at_a.counts()["sent"] == 4
        assert at_b.received(flow) == 100_000
        assert at_b.sent_bytes() == at_a.sent_bytes() >= 4 * (14 + HEADER_BYTES + 40)
        announced = at_a.announced(flow)
        assert {slot: at_b.arriving(flow, slot) for slot in announced} == announced
        connection.transfer(1000)
    assert [feedback.announced for feedback in returned[1:]] == [(70,) * LANES] * 3
    assert [feedback.header.bytes_onward for feedback in returned] == [0] + [123_456] * 3
    assert [feedback.header.bytes_received for feedback in returned] == [0] * 3 + [100_000]
    for feedback in (returned[0], returned[-1]):
        assert feedback.rtt_ns is not None
        assert feedback.delay_ns is not None
        assert 0 < feedback.rtt_ns < feedback.delay_ns


def test_udp_flows_get_feedback(pair: Pair, slow: SlotClock) -> None:
    """One that nobody answers and that has no socket even: the carrier itself comes back."""
    flow = Flow("10.77.0.1", 5000, "10.77.0.2", 6000, socket.IPPROTO_UDP)
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, slow, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, slow, netns=pair.b),
        in_netns(pair.b, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
        in_netns(pair.a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind(("10.77.0.2", 6000))
        receiver.settimeout(patience(60))
        sender.bind(("10.77.0.1", 5000))
        ring = at_a.feedback(returned.append)
        at_a.announce(flow)
        Schedules(at_a.schedules, slow, netns=0).set(flow, slow.slot(), [70] * 20)
        at_a.probe(flow)
        wait_until(lambda: ring.poll(10) >= 0 and len(returned) == 1)
        sender.sendto(b"application's", ("10.77.0.2", 6000))
        assert receiver.recv(100) == b"application's"  # and nothing before it
        ring.close()
        assert at_a.counts()["sent"] == 1
    assert returned[0].flow == flow


def test_received_flows_are_forgotten_when_idle(pair: Pair, slow: SlotClock) -> None:
    flow = Flow("10.77.0.1", 5000, "10.77.0.2", 6000, socket.IPPROTO_UDP)
    returned: list[carriers.Feedback] = []
    with (
        carriers.attached(pair.index_a, slow, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, slow, netns=pair.b) as at_b,
    ):
        ring = at_a.feedback(returned.append)
        at_a.announce(flow)
        at_b.set_onward(flow, 5)
        at_a.probe(flow)
        wait_until(lambda: ring.poll(10) >= 0 and len(returned) == 1)
        assert (at_b.clear_idle(), at_b.received(flow)) == (0, 0)
        assert at_b.clear_idle(0.0) == 1
        with pytest.raises(KeyError):
            at_b.received(flow)
        at_b.set_onward(flow, 0)
        at_a.probe(flow)
        wait_until(lambda: ring.poll(10) >= 0 and len(returned) == 2)
        ring.close()
    assert [feedback.header.bytes_onward for feedback in returned] == [5, 0]


@pytest.mark.parametrize(
    ("slots", "planned"),
    [
        (-3, {0: 40, 1: 30, 2: 20, 3: 10}),
        (3, {3: 10}),  # the slots before have passed at the switches
        (1000, {0: 40, 1: 30, 2: 20, 3: 10}),  # where this restarts the lanes
    ],
)
def test_a_clock_that_is_set_does_not_count_a_slot_twice(
    pair: Pair, slow: SlotClock, slots: int, planned: dict[int, int]
) -> None:
    """It is wrong for a while; then what a switch would have added up is what was announced: the plan."""
    flow = Flow("10.77.0.1", 5000, "10.77.0.2", 6000, socket.IPPROTO_UDP)
    wrong = SlotClock(slow.slot_ns, slow.epoch_ns - slots * slow.slot_ns)
    with (
        carriers.attached(pair.index_a, slow, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, slow, netns=pair.b) as at_b,
    ):
        at_a.announce(flow)
        base = slow.slot()
        ring = at_a.feedback(lambda _: None)
        for clock in (slow, wrong, slow, wrong, slow):
            at_a.set_clock(clock)
            Schedules(at_a.schedules, clock, netns=0).set(flow, clock.slot(), [40.0, 30.0, 20.0, 10.0])
            at_a.probe(flow)
            wait_until(lambda: ring.poll(10) == 1)
        ring.close()
        announced = at_a.announced(flow)
        assert {slot: at_b.arriving(flow, slot) for slot in announced} == announced
    assert {slot - base: rate for slot, rate in announced.items() if rate} == planned


def test_a_flow_within_the_host_is_not_probed(pair: Pair, slow: SlotClock) -> None:
    """The packet of headers would go by the loopback, to the application."""
    flow = Flow("10.77.0.1", 5000, "10.77.0.1", 6000, socket.IPPROTO_UDP)
    with (
        carriers.attached(pair.index_a, slow, netns=pair.a) as at_a,
        in_netns(pair.a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
    ):
        receiver.bind(("10.77.0.1", 6000))
        at_a.announce(flow)
        at_a.probe(flow)
        at_a.withdraw(flow)
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(100)


def test_a_flow_that_ends_takes_back_what_it_announced(
    pair: Pair, connect: Callable[..., Connection], slow: SlotClock
) -> None:
    """By withdrawal at once, or with its next packet where only its schedule ended."""
    connection, other = connect(), connect()
    with carriers.attached(pair.index_a, slow, netns=pair.a) as at_a, sniff(pair.b) as tap:
        schedules = Schedules(at_a.schedules, slow, netns=0)
        for each in (connection, other):
            at_a.announce(Flow.of(each.sender), 7)
            schedules.set(Flow.of(each.sender), slow.slot(), [70] * LANES)
            at_a.probe(Flow.of(each.sender))
        at_a.withdraw(Flow.of(connection.sender))
        connection.transfer(1000)
        schedules.clear(Flow.of(other.sender))
        other.transfer(1000)
        other.transfer(1000)
        deltas = [{lane.delta for lane in header.lanes} for header in headers_seen(tap)]
        with pytest.raises(KeyError):
            at_a.announced(Flow.of(connection.sender))
    assert deltas == [{70}, {70}, {-70}, {-70}]


def test_a_receiver_without_programs_ignores_carriers(
    pair: Pair, connect: Callable[..., Connection], slow: SlotClock
) -> None:
    connection = connect()
    flow = Flow.of(connection.sender)
    with carriers.attached(pair.index_a, slow, netns=pair.a) as at_a, sniff(pair.b) as tap:
        at_a.announce(flow)
        for _ in range(20):
            at_a.probe(flow)
            connection.transfer(1000)
        seen = headers_seen(tap)
    assert len(seen) == 20
    assert all(header.kind == Kind.SCHEDULE for header in seen)


def test_bad_input_and_what_is_full_or_gone(pair: Pair, slow: SlotClock) -> None:
    """A number too large, a flow twice, too many flows, no interface: an error, and the rest goes on."""
    flows = [Flow("10.77.0.1", port, "10.77.0.2", 6000, 17) for port in range(1, 4098)]
    with carriers.attached(pair.index_a, slow, netns=pair.a) as at_a:
        with pytest.raises(BadInput, match="must fit 32 bits"):
            at_a.announce(flows[0], 1 << 32)
        for flow in flows[:4096]:
            at_a.announce(flow)
        with pytest.raises(BadInput, match="announces already"):
            at_a.announce(flows[0])
        with pytest.raises(EbpfError, match=r"map announcers.*full"):
            at_a.announce(flows[4096])
        at_a.withdraw(flows[4096])
        at_a.probe(flows[4096])  # which announces nothing
        assert at_a.counts()["sent"] == 0
        at_a.withdraw(flows[0])
        at_a.announce(flows[4096])
        at_a.probe(flows[4096])
        wait_until(lambda: at_a.counts()["sent"] == 1)
        pair.run(pair.a, "ip", "link", "del", "eth0")
        with pytest.raises(EntrainError, match="cannot be probed"):
            at_a.probe(flows[4096])
        at_a.withdraw(flows[4096])
        with pytest.raises(KeyError):
            at_a.announced(flows[4096])
