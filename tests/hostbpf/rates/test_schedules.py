"""Slot rates: what leaves in a slot is what the schedule says, by socket pacing and by departure times."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether

from ebpf import EbpfError, Map, Object, compile_cached
from hostbpf import SOURCES
from hostbpf.clock import SlotClock
from hostbpf.flow import netns_cookie
from hostbpf.rates import schedules as slots
from hostbpf.rates.meter import metered
from hostbpf.rates.schedules import Enforcer, Schedules, TimedSchedule
from hostbpf.rates.waits import Cause, Wait, explained
from machine.errors import BadInput
from tests.hostbpf.conftest import Connection, Pair, or_skip
from tests.hostbpf.taps import sniff
from wire.flow import Flow

pytestmark = pytest.mark.root

CLOCK = SlotClock.shared(60)
TSTAMP = 152  # offset in struct __sk_buff
SKB_SIZE = 192
BURST = 2 * 1448
ROUNDS = 15
FLOW = Flow("10.0.0.1", 1000, "10.0.0.2", 2000)


@pytest.fixture(scope="module")
def registered() -> Iterator[Map]:
    with or_skip(slots.pacing_registered()) as schedules:
        yield schedules


@pytest.fixture
def paced(registered: Map) -> Map:
    registered.clear()
    return registered


@contextlib.contextmanager
def sending(connection: Connection) -> Iterator[None]:
    """Within, the connection always has something to send."""
    end = threading.Event()

    def send() -> None:
        while not end.is_set():
            connection.sender.send(bytes(30_000))

    def receive() -> None:
        while connection.receiver.recv(1 << 18):
            pass

    connection.sender.setsockopt(socket.IPPROTO_TCP, 25, 65536)  # TCP_NOTSENT_LOWAT
    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        threads[0].join()
        connection.sender.shutdown(socket.SHUT_WR)
        threads[1].join()


def wait_for_slot(slot: int, clock: SlotClock = CLOCK) -> None:
    while clock.slot() < slot:
        time.sleep(max(0, clock.start_ns(slot) - time.monotonic_ns()) / 1e9)


@pytest.mark.parametrize("control", slots.PACED)
def test_rates_follow_the_schedule(
    pair: Pair, connect: Callable[..., Connection], paced: Map, control: str
) -> None:
    """No slot carries more than its rate and three bursts. None carries less than its rate, less two bursts,
    and less what its rate allows in the time in which the flow had to wait for the machine: for data, for the
    receiver, for a processor. Behind the schedule the flow is free.

    The kernel tells of all waits. There are as many rounds as it takes to see each rate without long ones.
    A few rounds do not count: those in which the kernel did not ask for the pace (KNOWN_ISSUES.md,
    process 1).
    """
    pair.run(pair.a, "ip", "link", "set", "eth0", "gso_max_segs", "2")
    connection = connect(control)
    flow = Flow.of(connection.sender)
    schedules = Schedules(paced, CLOCK, netns=netns_cookie(pair.a))
    rates = [10.0, 40.0, 5.0, 0.0, 0.0, 30.0, 3.0, 20.0]
    wanted = [rate * 125_000 * 0.06 for rate in rates]
    rounds: list[int] = []
    left_out: list[int] = []
    with (
        metered(CLOCK, pair.index_a, netns=pair.a) as meter,
        explained(pair.index_a, netns=pair.a) as waits,
    ):
        told: list[Wait] = []
        with sending(connection):
            seen = [False] * len(rates)
            for _ in range(ROUNDS):
                first = CLOCK.slot() + 3
                schedules.set(flow, first - 3, [1.0, 1.0, 1.0, *rates])
                if CLOCK.slot() >= first:
                    continue  # this process had no processor: the flow was free in the first slot
                wait_for_slot(first + len(rates) + 4)
                fresh = waits.take()
                if any(each.cause == Cause.UNASKED for each in fresh):
                    left_out.append(first)
                    continue
                told += fresh
                rounds.append(first)
                for offset, rate in enumerate(rates):
                    seen[offset] |= not rate or waited_ns(told, first + offset) < CLOCK.slot_ns / 20
                if all(seen):
                    break
        told += waits.take()  # of who still waited then
        sent = {slot: each.payload_bytes for (which, slot), each in meter.read().items() if which == flow}
    assert rounds
    assert len(left_out) <= 3, f"in {len(left_out)} rounds, packets left without asking for the pace"
    for first in rounds:
        for offset, most in enumerate(wanted):
            got = sent.get(first + offset, 0)
            missed = most * waited_ns(told, first + offset) / CLOCK.slot_ns
            assert most - missed - 2 * BURST <= got <= most + 3 * BURST, (first, offset, most, missed, got)
    free = max(sent.get(first + len(rates) + late, 0) for first in rounds for late in range(1, 4))
    assert free > 3 * max(wanted)


def waited_ns(told: list[Wait], slot: int) -> int:
    """How long the flow has waited in a slot."""
    start_ns = CLOCK.start_ns(slot)
    return sum(
        each.within(start_ns, start_ns + CLOCK.slot_ns) for each in told if each.cause != Cause.REPEATED
    )


@pytest.mark.parametrize("control", slots.PACED)
def test_packets_are_as_long_as_the_device_takes_them(
    pair: Pair, connect: Callable[..., Connection], paced: Map, control: str
) -> None:
    """Longer ones would be cut up in software, segment by segment, as the tap would see them."""
    pair.run(pair.a, "ip", "link", "set", "eth0", "gso_max_size", "25000")
    connection = connect(control)
    flow = Flow.of(connection.sender)
    schedules = Schedules(paced, CLOCK, netns=netns_cookie(pair.a))
    schedules.set(flow, CLOCK.slot(), [190.0] * 30)
    with sniff(pair.a) as tap:
        connection.transfer(4_000_000)
        lengths = outgoing(tap, flow)
    long = sum(length for length in lengths if length > 2 * 1514)
    assert long > 0.8 * sum(lengths)
    assert max(lengths) <= 25000


def outgoing(tap: socket.socket, flow: Flow) -> list[int]:
    """Lengths of the frames with data of `flow`."""
    ports = struct.pack("!HH", flow.source_port, flow.destination_port)
    found: list[int] = []
    while True:
        try:
            frame = tap.recv(1 << 17)
        except TimeoutError:
            return found
        if frame[34:38] == ports and len(frame) > 100:
            found.append(len(frame))


def test_flows_without_schedule_are_free(pair: Pair, connect: Callable[..., Connection], paced: Map) -> None:
    connection, other = connect("slot_cubic"), connect("slot_cubic")
    schedules = Schedules(paced, CLOCK, netns=netns_cookie(pair.a))
    schedules.set(Flow.of(other.sender), CLOCK.slot(), [0.1] * 30)
    with metered(CLOCK, pair.index_a, netns=pair.a) as meter:
        connection.transfer(5_000_000)
        flow = Flow.of(connection.sender)
        assert (
            sum(each.payload_bytes for (which, _), each in meter.read().items() if which == flow) >= 5_000_000
        )
    schedules.clear(Flow.of(other.sender))
    other.transfer(2_000_000)


@pytest.mark.parametrize(
    ("rates", "message"),
    [([-1.0], "rate -1"), ([], "0 slots"), ([1.0] * 33, "33 slots"), ([101.0], "the link's 100")],
)
def test_wrong_schedules_are_refused(paced: Map, rates: list[float], message: str) -> None:
    schedules = Schedules(paced, CLOCK, netns=1, link_mbps=100)
    with pytest.raises(BadInput, match=message):
        schedules.set(FLOW, CLOCK.slot(), rates)
    assert len(paced) == 0


def test_passed_slots_are_refused_and_forgotten(paced: Map) -> None:
    clock = SlotClock.shared(400)
    schedules = Schedules(paced, clock, netns=1)
    with pytest.raises(BadInput, match="have passed"):
        schedules.set(FLOW, clock.slot() - 5, [1.0] * 3)
    wait_for_slot(clock.slot() + 1, clock)
    schedules.set(FLOW, clock.slot() - 2, [1.0] * 3)
    wait_for_slot(clock.slot() + 1, clock)
    assert schedules.clear_passed() == 1
    assert len(paced) == 0


def test_full_map_names_the_flow() -> None:
    with Object.open(compile_cached(SOURCES / "slot_edt.bpf.c")) as obj:
        obj.resize("schedules", 2)
        obj.load()
        schedules = Schedules(obj.maps["schedules"], CLOCK, netns=0)
        with pytest.raises(EbpfError, match="no room for its schedule"):
            for port in range(3):
                schedules.set(FLOW._replace(source_port=port), CLOCK.slot(), [1.0])


def test_limits_are_schedules_in_whole_grains(paced: Map) -> None:
    """In bytes/s, as in Mbit/s, with silence below what can be done; rounded down where there is a grain."""
    schedules = Schedules(paced, CLOCK, netns=1, link_mbps=100)
    slot = CLOCK.slot()

    def kept() -> tuple[bytes, tuple[int, ...]]:
        (raw,) = paced.values()
        return raw[:24], struct.unpack_from("=32Q", raw, 32)  # times and number; rates

    schedules.set(FLOW, slot, [8.0, 0.0, 0.0123456])
    in_mbps = kept()
    assert in_mbps[1] == (1_000_000, 0, 1543, *[0] * 29)
    schedules.limit(FLOW, slot, [1e6, 0.0, 1543.2])
    assert kept() == in_mbps
    schedules.limit(FLOW, slot, [1_000_999.9, 0.0, 1543.2, 999.9, 12.5e6], grain=1000)
    assert kept()[1] == (1_000_000, 0, 1000, 0, 12_500_000, *[0] * 27)
    schedules.limit(FLOW, slot, [0.4, 0.6, 1.6])
    assert kept()[1][:3] == (0, 0, 2)
    for wrong in (-0.1, 12.6e6, float("nan"), float("inf")):
        with pytest.raises(BadInput, match=f"in slot {slot + 1}; must be from 0 to the link's 100"):
            schedules.limit(FLOW, slot, [1e6, wrong], grain=1000)
    with pytest.raises(
        BadInput, match=r"rate 4e-06 Mbit/s in slot \d+; the lowest that pacing can do is 8e-06"
    ):
        schedules.set(FLOW, slot, [0.0, 4e-6])


class Departing:
    """Enforcement by departure times, without the thread and the interface."""

    def assign(self, flow: Flow) -> tuple[Enforcer, bool]:
        return Enforcer.EDT, False

    def lowest(self, enforcer: Enforcer) -> int:
        return 1

    def changed(self, flow: Flow, schedule: TimedSchedule | None) -> None:
        pass


@contextlib.contextmanager
def departures(clock: SlotClock) -> Iterator[tuple[Schedules, Callable[[bytes], int]]]:
    """The fq enforcer without fq: schedules, and the departure time that a packet gets (0: at once)."""
    with Object.open(compile_cached(SOURCES / "slot_edt.bpf.c")) as obj:
        obj.load()

        def departs(packet: bytes) -> int:
            context = obj.programs["depart"].test_run(packet, bytes(SKB_SIZE)).ctx
            time_ns: int = struct.unpack_from("=Q", context, TSTAMP)[0]
            return time_ns

        yield Schedules(obj.maps["schedules"], clock, netns=0, enforcement=Departing()), departs


def packet_of(transport: str, payload: int) -> tuple[Flow, bytes]:
    layer = TCP(sport=1000, dport=2000) if transport == "tcp" else UDP(sport=1000, dport=2000)
    packet = bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / layer / bytes(payload))
    return FLOW._replace(protocol=6 if transport == "tcp" else 17), packet


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_departure_times_are_spaced_by_the_rate(transport: str) -> None:
    """Each packet's time is the last one's plus that one's payload at the rate."""
    flow, packet = packet_of(transport, 1000)
    clock = SlotClock(10**13, time.monotonic_ns())  # one slot for the whole test
    with departures(clock) as (schedules, departs):
        assert departs(packet) == 0
        schedules.set(flow, 0, [0.1])
        times = [departs(packet) for _ in range(20)]
    assert time.monotonic_ns() - times[0] > 0
    step = 1000 * 8 * 10_000  # nanoseconds at 0.1 Mbit/s
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {step}


def test_a_slot_may_have_begun_before_the_machine() -> None:
    """Its start is negative then, as on a machine that has run for less than a slot."""
    flow, packet = packet_of("udp", 1000)
    clock = SlotClock(2 * time.monotonic_ns(), -1)
    with departures(clock) as (schedules, departs):
        schedules.set(flow, 0, [0.01])
        first, second = departs(packet), departs(packet)
    assert second - first == 1000 * 8 * 100_000


def test_departure_times_follow_a_new_schedule() -> None:
    """What was slow is not waited for when it is fast now; acknowledgements are never held back."""
    flow, packet = packet_of("tcp", 1000)
    clock = SlotClock(10**13, time.monotonic_ns())
    with departures(clock) as (schedules, departs):
        schedules.set(flow, 0, [0.01])
        first, second = departs(packet), departs(packet)
        assert second - first == 1000 * 8 * 100_000
        schedules.set(flow, 0, [100.0])
        assert departs(packet) < second
        assert departs(packet_of("tcp", 0)[1]) == 0


def test_nothing_departs_in_a_silent_slot() -> None:
    flow, packet = packet_of("udp", 1000)
    clock = SlotClock(10**9, time.monotonic_ns())
    with departures(clock) as (schedules, departs):
        slot = clock.slot()
        schedules.set(flow, slot, [0.0, 0.0, 100.0, 100.0])
        times = [departs(packet) for _ in range(3)]
    if clock.slot() < slot + 2:  # else it was busy elsewhere for a second
        assert clock.start_ns(slot + 2) <= times[0] < times[1] < times[2] < clock.start_ns(slot + 3)
