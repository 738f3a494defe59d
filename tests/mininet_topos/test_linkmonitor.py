"""The link monitor's program on packets made by hand, without any network."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from mininet_topos.linkmonitor import Burst, LinkMonitor
from wire.flow import Flow

pytestmark = pytest.mark.root

A, B = "10.1.1.2", "10.2.1.2"

FRESH = itertools.count(0, 10_000)
"""Sequence numbers of new payload."""


def tcp(
    sport: int = 20000, dport: int = 7000, *, payload: int = 1000, dscp: int = 3, **fields: object
) -> Packet:
    fields.setdefault("seq", next(FRESH))
    return (
        Ether()
        / IP(src=A, dst=B, tos=dscp << 2)
        / TCP(sport=sport, dport=dport, **fields)
        / Raw(bytes(payload))
    )


@pytest.fixture
def monitor() -> Iterator[Callable[..., LinkMonitor]]:
    opened = []

    def make(gap_ms: float) -> LinkMonitor:
        opened.append(LinkMonitor([], gap_ms=gap_ms))
        return opened[-1].__enter__()

    yield make
    for each in opened:
        each.__exit__()


def feed(monitor: LinkMonitor, *packets: Packet) -> list[Burst]:
    for packet in packets:
        run = monitor.program.test_run(bytes(packet))
        assert struct.pack("=I", run.retval) == struct.pack("=i", -1), (
            "the packet must go on to the next program"
        )
    return monitor.collect()


LONG, SHORT = 60_000.0, 1e-6
"""A gap that no test takes, and one that passes between any two packets."""


def test_packets_of_one_flow_make_one_burst(monitor: Callable[..., LinkMonitor]) -> None:
    (burst,) = feed(monitor(LONG), tcp(), tcp(), tcp(payload=500))
    assert burst.flow == Flow(A, 20000, B, 7000)
    assert (burst.dscp, burst.bytes, burst.packets) == (3, 2500, 3)
    assert burst.first_ns < burst.last_ns


def test_what_is_sent_again_counts_and_keeps_no_flow_on_the_link(
    monitor: Callable[..., LinkMonitor],
) -> None:
    watching = monitor(SHORT)
    whole = [tcp(seq=2**32 - 1500 + 1000 * number & 0xFFFFFFFF) for number in range(3)]  # past the wrap
    (first, *_, last) = feed(watching, *whole, whole[0], whole[2])
    assert (first.packets, last.packets) == (1, 3)
    assert last.first_ns == last.last_ns
    assert watching.repeated == 2000
    (half_new,) = feed(watching, tcp(seq=5000))
    assert half_new.packets == 1
    again = feed(watching, tcp(seq=5000), tcp(seq=5500))
    assert [burst.packets for burst in again] == [1, 1]
    assert watching.repeated == 2000
    other = feed(watching, tcp(seq=2**31), tcp(seq=5000))  # a new connection with the same ports
    assert [burst.packets for burst in other] == [1, 1]


def test_silence_ends_a_burst(monitor: Callable[..., LinkMonitor]) -> None:
    bursts = feed(monitor(SHORT), tcp(), tcp(), tcp())
    assert [burst.packets for burst in bursts] == [1, 1, 1]
    assert [burst.bytes for burst in bursts] == [1000] * 3
    ends = [moment for burst in bursts for moment in (burst.first_ns, burst.last_ns)]
    assert ends == sorted(ends)


def test_collecting_begins_anew(monitor: Callable[..., LinkMonitor]) -> None:
    watching = monitor(LONG)
    assert len(feed(watching, tcp())) == 1
    assert watching.collect() == []
    assert len(feed(watching, tcp())) == 1
    assert watching.lost == 0


@pytest.mark.parametrize(
    "other",
    [tcp(sport=20001), tcp(dport=7001), tcp(dscp=4)],
    ids=["source port", "destination port", "step"],
)
def test_what_tells_flows_apart(monitor: Callable[..., LinkMonitor], other: Packet) -> None:
    assert len(feed(monitor(LONG), tcp(), other)) == 2


@pytest.mark.parametrize(
    "packet",
    [
        tcp(payload=0, flags="A"),
        tcp(payload=0, flags="S", options=[("MSS", 1460), ("SAckOK", b"")]),
        Ether() / IP(src=A, dst=B) / TCP(sport=1, dport=2, flags="A") / Raw(bytes(0)),
        Ether() / ARP(),
        Ether() / IPv6() / TCP() / Raw(bytes(100)),
        Ether() / IP(src=A, dst=B) / ICMP() / Raw(bytes(100)),
        Ether(type=0x88B5) / Raw(bytes(100)),
        Ether() / IP(src=A, dst=B, proto=6) / Raw(bytes(10)),
    ],
    ids=["ACK", "SYN", "bare ACK", "ARP", "IPv6", "ICMP", "slot header", "cut off"],
)
def test_what_is_no_payload_of_a_flow_is_not_seen(
    monitor: Callable[..., LinkMonitor], packet: Packet
) -> None:
    assert feed(monitor(LONG), packet) == []


def test_an_ack_that_is_padded_to_a_minimal_frame_has_no_payload(monitor: Callable[..., LinkMonitor]) -> None:
    padded = bytes(Ether() / IP(src=A, dst=B) / TCP(flags="A")).ljust(60, b"\0")
    assert feed(monitor(LONG), Raw(padded)) == []


def test_options_of_ip_and_tcp_are_no_payload(monitor: Callable[..., LinkMonitor]) -> None:
    from scapy.layers.inet import IPOption_NOP

    packet = (
        Ether()
        / IP(src=A, dst=B, options=[IPOption_NOP()] * 8)
        / TCP(sport=1, dport=2, options=[("Timestamp", (1, 2)), ("NOP", None), ("NOP", None)])
        / Raw(bytes(77))
    )
    (burst,) = feed(monitor(LONG), packet)
    assert burst.bytes == 77
    assert burst.flow == Flow(A, 1, B, 2)


def test_udp_counts_too(monitor: Callable[..., LinkMonitor]) -> None:
    (burst,) = feed(monitor(LONG), Ether() / IP(src=A, dst=B) / UDP(sport=5, dport=6) / Raw(bytes(300)))
    assert burst.flow == Flow(A, 5, B, 6, protocol=17)
    assert burst.bytes == 300


def test_many_flows_at_once(monitor: Callable[..., LinkMonitor]) -> None:
    packets = [tcp(sport=20000 + number, payload=10 + number) for number in range(300)]
    bursts = feed(monitor(LONG), *packets)
    assert {burst.flow.source_port: burst.bytes for burst in bursts} == {
        20000 + number: 10 + number for number in range(300)
    }
