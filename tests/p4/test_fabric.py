"""The fabric's program: where packets go, what is counted, what is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from finsy import P4TableAction
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from controlplane.constants import DropReason
from tests.p4.conftest import Start
from tests.p4.fabric import (
    HOSTS,
    OTHER,
    SOURCE_ROUTED,
    TENANT,
    UPLINKS,
    arp_request,
    carrier,
    counted,
    frame,
    host_ip,
    host_mac,
    host_port,
    leaf_entries,
    link,
    mac_text,
    packet_out,
    route,
    send,
    slot_header,
    source_route,
    tcp,
    to_host,
    udp,
)
from tests.p4.netless import Netless
from tests.p4.packets import bits
from tests.p4.targets import CPU_PORT, Target
from wire.slot_header import ETHERTYPE, LANES, VERSION, Kind, SlotHeader


@pytest.fixture(scope="module")
def leaf(start: Start) -> Iterator[Target]:
    """A leaf with its whole state."""
    target = start("fabric")
    with target.installed(*leaf_entries()):
        yield target


def dropped(target: Target, reason: DropReason, port: int, packet: Packet | bytes) -> bool:
    """Whether a packet is dropped for this reason and for no other."""
    before = [counted(target, "drops", each)[0] for each in DropReason]
    outputs = target.send(port, bytes(packet))
    after = [counted(target, "drops", each)[0] for each in DropReason]
    changes = [new - old for new, old in zip(after, before, strict=True)]
    return not outputs and changes == [int(each == reason) for each in DropReason]


# --- routes and VRFs ---


def test_a_host_reaches_its_neighbour(leaf: Target) -> None:
    packet = udp(host_ip(2))
    ((port, output),) = send(leaf, 1, packet)
    assert port == 2
    assert output.dst == mac_text(host_mac(2))
    assert output.src == packet.src
    expected = Ether(bytes(packet))
    assert (output[IP].ttl, output[IP].src, output[IP].dst) == (63, host_ip(1), host_ip(2))
    assert bytes(output[UDP]) == bytes(expected[UDP])


def test_the_checksum_is_right_behind_the_switch(leaf: Target) -> None:
    for ttl in (2, 64, 255):
        ((_, output),) = send(leaf, 1, udp(host_ip(2), ttl=ttl, id=0xFFFF, tos=0xFF))
        checksum = output[IP].chksum
        del output[IP].chksum
        assert Ether(bytes(output))[IP].chksum == checksum


def test_a_vrf_knows_only_its_own(leaf: Target) -> None:
    assert dropped(leaf, DropReason.OTHER_VRF, 3, udp(host_ip(1), src_port=3))
    assert dropped(leaf, DropReason.OTHER_VRF, 3, carrier(SCHEDULE, host_ip(1), src_port=3))
    assert dropped(leaf, DropReason.NO_ROUTE, 3, udp("10.1.0.1", src_port=3))
    assert send(leaf, 1, udp(host_ip(3)))[0][0] in UPLINKS
    ((port, _),) = send(leaf, 3, udp(host_ip(3), src_port=3))
    assert port == 3


def test_the_same_address_in_two_vrfs(leaf: Target) -> None:
    with leaf.installed(
        route(TENANT, "10.7.0.1/32", to_host(1)),
        route(OTHER, "10.7.0.1/32", to_host(3)),
    ):
        assert send(leaf, 1, udp("10.7.0.1"))[0][0] == 1
        assert send(leaf, 3, udp("10.7.0.1", src_port=3))[0][0] == 3


def test_a_port_without_vrf_carries_nothing(leaf: Target) -> None:
    leaf.client.delete(host_port(2, TENANT))
    try:
        assert dropped(leaf, DropReason.NO_VRF, 2, udp(host_ip(1), src_port=2))
        assert dropped(leaf, DropReason.NO_VRF, 2, arp_request(host_ip(1), src_port=2))
    finally:
        leaf.client.insert(host_port(2, TENANT))


def test_a_host_cannot_send_under_another_address(leaf: Target) -> None:
    for other in (1, 3, 4):
        for packet in (
            udp(host_ip(1), src_port=other),
            tcp(host_ip(1), src_port=other),
            carrier(SCHEDULE, host_ip(1), src_port=other),
            udp("10.2.0.1", src_port=other),
            udp("192.0.2.1", src_port=other),
            arp_request(host_ip(1), src_port=other),
        ):
            assert dropped(leaf, DropReason.FORGED_SOURCE, 2, packet)
    assert send(leaf, 2, udp(host_ip(1), src_port=2))[0][0] == 1


def test_a_packet_from_a_switch_has_any_source(leaf: Target) -> None:
    assert send(leaf, UPLINKS[0], udp(host_ip(1), src_port=99))[0][0] == 1


def test_the_longest_prefix_wins(leaf: Target) -> None:
    assert dropped(leaf, DropReason.NO_ROUTE, 1, udp("10.9.0.1"))
    with leaf.installed(route(TENANT, "10.9.0.1/32", to_host(2))):
        assert send(leaf, 1, udp("10.9.0.1"))[0][0] == 2
        assert dropped(leaf, DropReason.NO_ROUTE, 1, udp("10.9.0.2"))


def test_a_destination_that_no_route_knows_is_dropped(leaf: Target) -> None:
    assert dropped(leaf, DropReason.NO_ROUTE, 1, udp("192.0.2.1"))


# --- uplinks ---


def test_source_route_overrides_the_hash(leaf: Target) -> None:
    for ingress, uplink in SOURCE_ROUTED.items():
        source = ingress if ingress in HOSTS else 1
        flows = (udp(f"10.1.0.{host}", src_port=source, sport=host) for host in range(1, 20))
        ports = {send(leaf, ingress, flow)[0][0] for flow in flows}
        assert ports == {uplink}


def test_source_route_leaves_local_destinations_alone(leaf: Target) -> None:
    with leaf.installed(source_route(1, "10.0.0.0/8", 6, 1)):
        assert send(leaf, 1, udp(host_ip(2)))[0][0] == 2
        assert send(leaf, 1, udp("10.2.0.1"))[0][0] == 6


def test_source_route_of_higher_priority_wins(leaf: Target) -> None:
    with leaf.installed(source_route(1, "10.1.2.0/24", 6, 20), source_route(1, "10.1.2.3/32", 5, 5)):
        assert send(leaf, 1, udp("10.1.2.3"))[0][0] == 6
        assert send(leaf, 1, udp("10.1.3.3"))[0][0] == 4


def flows(count: int) -> list[Packet]:
    return [udp(f"10.2.0.{number % 50}", sport=1024 + 7 * number, dport=number) for number in range(count)]


def test_ecmp_uses_every_uplink(leaf: Target) -> None:
    chosen = Counter(send(leaf, 1, packet)[0][0] for packet in flows(150))
    assert set(chosen) == set(UPLINKS)
    assert min(chosen.values()) > 20


def test_a_flow_stays_on_its_uplink(leaf: Target) -> None:
    for packet in flows(15):
        ports = set()
        for ttl, size in ((64, 0), (9, 500), (200, 1400)):
            packet[IP].ttl = ttl
            ports.add(send(leaf, 1, packet / Raw(bytes(size)))[0][0])
        assert len(ports) == 1


def test_tcp_and_udp_of_the_same_ports_are_different_flows(leaf: Target) -> None:
    pairs = {
        (
            send(leaf, 1, udp("10.2.0.1", sport=sport))[0][0],
            send(leaf, 1, tcp("10.2.0.1", sport=sport))[0][0],
        )
        for sport in range(1, 40)
    }
    assert any(first != second for first, second in pairs)


def test_fragments_of_a_packet_stay_together(leaf: Target) -> None:
    fragments = [
        frame()
        / IP(src=host_ip(1), dst="10.2.0.9", proto=17, flags=flags, frag=frag)
        / Raw(bytes([content] * 64))
        for flags, frag, content in ((1, 0, 7), (1, 8, 8), (0, 16, 9))
    ]
    assert len({send(leaf, 1, fragment)[0][0] for fragment in fragments}) == 1


def test_a_group_without_members_drops(leaf: Target) -> None:
    with leaf.installed(route(TENANT, "10.5.0.0/16", P4TableAction("to_group", group=99))):
        assert dropped(leaf, DropReason.NO_UPLINK, 1, udp("10.5.0.1"))


# --- what is not forwarded ---


@pytest.mark.parametrize("ttl", [0, 1])
def test_a_packet_at_the_end_of_its_life_is_dropped(leaf: Target, ttl: int) -> None:
    assert dropped(leaf, DropReason.TTL, 1, udp(host_ip(2), ttl=ttl))


def test_a_wrong_checksum_is_dropped(leaf: Target) -> None:
    packet = bytearray(bytes(udp(host_ip(2))))
    packet[24] ^= 1
    assert dropped(leaf, DropReason.MALFORMED, 1, bytes(packet))


@pytest.mark.parametrize(
    "packet",
    [
        bytes(frame() / IP(src=host_ip(1), dst=host_ip(2), version=6)),
        bytes(frame() / IP(src=host_ip(1), dst=host_ip(2), ihl=4)),
        bytes(frame() / IP(src=host_ip(1), dst=host_ip(2), options=[b"\1\1\1\1"])),
        bytes(udp(host_ip(2)))[:30],
        bytes(arp_request(host_ip(2)))[:40],
    ],
    ids=["version", "short header length", "options", "cut IPv4", "cut ARP"],
)
def test_malformed_packets_are_dropped(leaf: Target, packet: bytes) -> None:
    assert dropped(leaf, DropReason.MALFORMED, 1, packet)


def test_other_protocols_are_dropped(leaf: Target) -> None:
    assert dropped(leaf, DropReason.NOT_IP, 1, bytes(12) + b"\x86\xdd" + bytes(60))
    assert dropped(leaf, DropReason.NOT_IP, 1, bytes(14))


def slotted(header: SlotHeader, **changes: int) -> bytes:
    packet = bytearray(carrier(header, host_ip(2)))
    for at, value in changes.items():
        packet[int(at[1:])] = value
    return bytes(packet)


SCHEDULE = SlotHeader(kind=Kind.SCHEDULE)


@pytest.mark.parametrize(
    "packet",
    [
        slotted(SCHEDULE, _14=VERSION << 4),
        slotted(SCHEDULE, _14=VERSION << 4 | len(Kind) + 1),
        slotted(SCHEDULE, _16=0x08, _17=0x06),
        slotted(SCHEDULE, _16=0x88, _17=0xB5),
        slotted(SCHEDULE, _25=LANES),
        slotted(SCHEDULE, _24=0x80),
        slotted(SCHEDULE)[:60],
        slotted(SCHEDULE)[:20],
        slotted(SCHEDULE)[:-30],
    ],
    ids=[
        "kind 0",
        "kind 4",
        "next ARP",
        "next slot",
        "first lane beyond the last",
        "first lane far beyond",
        "cut lanes",
        "cut header",
        "cut IPv4",
    ],
)
def test_malformed_carriers_are_dropped(leaf: Target, packet: bytes) -> None:
    assert dropped(leaf, DropReason.MALFORMED, 1, packet)


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1])
def test_carriers_of_another_version_are_dropped(leaf: Target, version: int) -> None:
    """They have a reason of their own, whatever else that version may have changed."""
    for packet in (
        slotted(SCHEDULE, _14=version << 4 | Kind.SCHEDULE),
        slotted(SCHEDULE, _14=version << 4)[:34],
    ):
        assert dropped(leaf, DropReason.VERSION, 1, packet)


def test_a_forged_query_is_dropped(leaf: Target) -> None:
    assert dropped(leaf, DropReason.FORGED_QUERY, 1, slotted(SlotHeader(kind=Kind.QUERY, port=2)))


# --- ARP ---


def test_the_leaf_answers_arp(leaf: Target) -> None:
    ((port, answer),) = send(leaf, 2, arp_request(host_ip(1), src_port=2))
    assert port == 2
    assert (answer.src, answer.dst) == (mac_text(host_mac(1)), mac_text(host_mac(2)))
    reply = answer[ARP]
    assert reply.op == 2
    assert (reply.hwsrc, reply.psrc) == (mac_text(host_mac(1)), host_ip(1))
    assert (reply.hwdst, reply.pdst) == (mac_text(host_mac(2)), host_ip(2))


def test_arp_for_an_unknown_address_is_dropped(leaf: Target) -> None:
    assert dropped(leaf, DropReason.NO_ROUTE, 1, arp_request("10.0.0.99"))
    assert dropped(leaf, DropReason.NO_ROUTE, 1, arp_request("192.0.2.1"))


def test_arp_does_not_tell_of_the_hosts_of_another_vrf(leaf: Target) -> None:
    for target in (1, 2):
        assert dropped(leaf, DropReason.OTHER_VRF, 3, arp_request(host_ip(target), src_port=3))
    assert send(leaf, 3, arp_request(host_ip(3), src_port=3))[0][0] == 3


def test_arp_replies_are_not_answered(leaf: Target) -> None:
    packet = arp_request(host_ip(2))
    packet[ARP].op = 2
    assert dropped(leaf, DropReason.NOT_IP, 1, packet)


# --- counters ---


def test_ports_and_vrfs_are_counted(leaf: Target) -> None:
    packet = bytes(udp(host_ip(2)) / Raw(bytes(100)))
    names = [("port_in", 1), ("port_out", 2), ("vrf_counter", TENANT)]
    before = [counted(leaf, name, index) for name, index in names]
    for _ in range(5):
        leaf.send(1, packet)
    after = [counted(leaf, name, index) for name, index in names]
    changes = [(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)]
    assert changes == [(5, 5 * len(packet))] * 3


# --- the controller ---


def test_packet_in_says_where_it_came_from(leaf: Target) -> None:
    ((port, data),) = leaf.send(2, bytes(udp("10.8.0.1", src_port=2)))
    assert port == CPU_PORT
    assert data[:2] == bits([(2, 9), (0, 7)])
    assert Ether(data[2:])[IP].dst == "10.8.0.1"


@pytest.mark.parametrize("port", [*HOSTS, *UPLINKS])
def test_packet_out_leaves_untouched(leaf: Target, port: int) -> None:
    packet = bytes(udp("192.0.2.1", ttl=1))
    assert leaf.send(CPU_PORT, packet_out(port, packet)) == [(port, packet)]


def test_a_carrier_from_the_controller_is_forwarded(leaf: Target) -> None:
    ((port, data),) = leaf.send(CPU_PORT, packet_out(5, slotted(SCHEDULE)))
    assert port == 5
    assert slot_header(data).hops == 1


# --- ECN ---


@pytest.mark.parametrize("ecn", range(4))
def test_without_a_threshold_nothing_is_marked(leaf: Target, ecn: int) -> None:
    ((_, output),) = send(leaf, 1, udp(host_ip(2), tos=ecn))
    assert output[IP].tos == ecn


def test_a_full_queue_marks_capable_packets(leaf: Target, kind: str) -> None:
    if kind != "netless":
        pytest.skip("only without a network does a test decide how full the queue is")
    assert isinstance(leaf, Netless)
    # At 10 kbit/s each of these packets takes more than a second to leave the queue.
    leaf.datapath.set_queue(2, 0.01, 100)
    leaf.client.modify(link(2, 2000, ecn_threshold=5))
    try:
        sent = [1, 2, 1, 2, 1, 0, 1, 2, 3]
        packets = [(1, bytes(udp(host_ip(2), tos=ecn) / Raw(bytes(1400)))) for ecn in sent]
        seen = [Ether(outputs[0][1])[IP].tos for outputs in leaf.send_batch(packets).outputs]
        assert seen == [1, 2, 1, 2, 1, 0, 3, 3, 3]
    finally:
        leaf.client.modify(link(2, 2000))
        leaf.datapath.set_queue(2, 0, 0)


def test_tcp_passes_whole(leaf: Target) -> None:
    packet = tcp(host_ip(2)) / Raw(bytes(1000))
    ((_, output),) = send(leaf, 1, packet)
    assert bytes(output[TCP]) == bytes(Ether(bytes(packet))[TCP])


def test_carriers_are_forwarded_like_their_flow(leaf: Target) -> None:
    for packet in flows(20):
        plain = bytes(packet)
        with_header = plain[:12] + ETHERTYPE.to_bytes(2, "big") + SCHEDULE.pack() + plain[14:]
        ((port, _),) = leaf.send(1, plain)
        ((carried, _),) = leaf.send(1, with_header)
        assert port == carried
