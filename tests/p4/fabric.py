"""The fabric's program under test: a leaf with three host ports and three uplinks, and its packets."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from finsy import (
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4CounterEntry,
    P4IndirectAction,
    P4Member,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from controlplane.loads import query as query_frame
from p4src.compile import BUILD
from tests.p4.packets import bits
from tests.p4.targets import CPU_PORT, Output, Program, Target, fence_behind_header
from wire.slot_header import ETHERTYPE, SlotHeader


def fabric_fence(source: int, port: int, token: bytes) -> bytes:
    """From the controller a packet-out; from a port of the leaf an ARP request, answered there."""
    if source == CPU_PORT:
        return fence_behind_header(source, port, token)
    assert source == port
    return bytes(arp_request(host_ip(source if source in HOSTS else 1), source)) + token


FABRIC = Program("fabric", build=BUILD, fence=fabric_fence)

HOSTS, UPLINKS = (1, 2, 3), (4, 5, 6)
TENANT, OTHER = 10, 20  # VRFs: hosts 1 and 2 with all uplinks; host 3 alone
GROUP = 1
CAPACITY = {port: 1000 * port for port in (*HOSTS, *UPLINKS)}
SOURCE_ROUTED = {1: 4, 2: 5, 4: 5, 5: 6}  # ingress port: uplink, for 10.1.0.0/16


def host_ip(port: int) -> str:
    return f"10.0.0.{port}"


def host_mac(port: int) -> int:
    return 0x020000000000 + port


def vrf(port: int, number: int) -> P4TableEntry:
    action = P4TableAction("set_vrf", vrf=number)
    return P4TableEntry("vrf", match=P4TableMatch(ingress_port=port), action=action)


def host_port(port: int, number: int) -> P4TableEntry:
    address = int(IPv4Address(host_ip(port)))
    action = P4TableAction("set_host", vrf=number, address=address)
    return P4TableEntry("vrf", match=P4TableMatch(ingress_port=port), action=action)


def route(number: int, prefix: str, action: P4TableAction) -> P4TableEntry:
    return P4TableEntry("route", match=P4TableMatch(vrf=number, dst=prefix), action=action)


def to_host(port: int) -> P4TableAction:
    return P4TableAction("to_port", port=port, dmac=host_mac(port))


def source_route(ingress: int, prefix: str, uplink: int, priority: int) -> P4TableEntry:
    match = P4TableMatch(ingress_port=ingress, dst=prefix)
    return P4TableEntry(
        "source_route", match=match, action=P4TableAction("to_uplink", port=uplink), priority=priority
    )


def link(port: int, capacity: int, ecn_threshold: int = 0) -> P4TableEntry:
    action = P4TableAction("set_link", capacity=capacity, ecn_threshold=ecn_threshold)
    return P4TableEntry("link", match=P4TableMatch(egress_port=port), action=action)


def known_host(port: int) -> P4TableEntry:
    action = P4TableAction("is_host", mac=host_mac(port))
    return P4TableEntry("host", match=P4TableMatch(address=host_ip(port)), action=action)


def ecmp_group(
    number: int, uplinks: Iterable[int]
) -> list[P4ActionProfileMember | P4ActionProfileGroup | P4TableEntry]:
    """Members (numbered like their ports), the group, and the entry that uses it."""
    ports = list(uplinks)
    members = [
        P4ActionProfileMember("ecmp_selector", member_id=port, action=P4TableAction("to_uplink", port=port))
        for port in ports
    ]
    group = P4ActionProfileGroup(
        "ecmp_selector", group_id=number, max_size=8, members=[P4Member(port, weight=1) for port in ports]
    )
    entry = P4TableEntry("ecmp", match=P4TableMatch(group=number), action=P4IndirectAction(group_id=number))
    return [*members, group, entry]


def leaf_entries() -> list[object]:
    """The leaf's whole state."""
    return [
        *(host_port(port, TENANT) for port in (1, 2)),
        host_port(3, OTHER),
        *(vrf(port, TENANT) for port in UPLINKS),
        *(route(TENANT, f"{host_ip(port)}/32", to_host(port)) for port in (1, 2)),
        route(OTHER, f"{host_ip(3)}/32", to_host(3)),
        route(TENANT, "10.0.0.0/8", P4TableAction("to_group", group=GROUP)),
        route(TENANT, "10.9.0.0/16", P4TableAction("deny")),
        route(TENANT, "10.8.0.0/16", P4TableAction("to_controller")),
        *ecmp_group(GROUP, UPLINKS),
        *(source_route(ingress, "10.1.0.0/16", uplink, 10) for ingress, uplink in SOURCE_ROUTED.items()),
        *(known_host(port) for port in HOSTS),
        *(link(port, capacity) for port, capacity in CAPACITY.items()),
    ]


# --- packets ---


def frame(src_port: int = 1) -> Ether:
    """The Ethernet header of host `src_port`; the leaf, not the destination, is addressed."""
    return Ether(src=mac_text(host_mac(src_port)), dst="02:ff:ff:ff:ff:ff")


def mac_text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def udp(dst: str, *, src_port: int = 1, sport: int = 1000, dport: int = 2000, **ip: int) -> Packet:
    """A UDP packet of host `src_port`."""
    return (
        frame(src_port)
        / IP(src=host_ip(src_port), dst=dst, **ip)
        / UDP(sport=sport, dport=dport)
        / Raw(b"data")
    )


def tcp(dst: str, *, src_port: int = 1, sport: int = 1000, dport: int = 2000) -> Packet:
    """A TCP packet of host `src_port`."""
    return frame(src_port) / IP(src=host_ip(src_port), dst=dst) / TCP(sport=sport, dport=dport) / Raw(b"data")


def arp_request(target: str, src_port: int = 1) -> Packet:
    """Host `src_port` asks who has `target`."""
    mac = mac_text(host_mac(src_port))
    return Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=mac, psrc=host_ip(src_port), pdst=target)


def carrier(header: SlotHeader, dst: str, src_port: int = 1, **ip: int) -> bytes:
    """A slot header between Ethernet and a UDP packet to `dst`."""
    whole = bytes(udp(dst, src_port=src_port, **ip))
    return whole[:12] + ETHERTYPE.to_bytes(2, "big") + header.pack() + whole[14:]


def slot_header(output: bytes) -> SlotHeader:
    """The slot header of a packet that left."""
    assert output[12:14] == ETHERTYPE.to_bytes(2, "big")
    return SlotHeader.unpack(output[14:])


def packet_out(port: int, packet: bytes) -> bytes:
    return bits([(port, 9), (0, 7)]) + packet


def send(target: Target, port: int, packet: Packet | bytes) -> list[tuple[int, Packet]]:
    """Send, and parse what left at data ports."""
    return [(out, Ether(data)) for out, data in target.send(port, bytes(packet)) if out != CPU_PORT]


def only(outputs: list[Output]) -> tuple[int, bytes]:
    """The one output."""
    (output,) = outputs
    return output


def counted(target: Target, name: str, index: int) -> tuple[int, int]:
    """Packets and bytes of a counter's cell."""
    (found,) = target.client.read(P4CounterEntry(name, index=index))
    assert found.data is not None
    return found.data.packet_count, found.data.byte_count


def query(target: Target, port: int, *, epochs: bool = False) -> SlotHeader:
    """Read the load table of `port` as the controller does."""
    out, data = only(target.send(CPU_PORT, packet_out(0, query_frame(port, 1, epochs=epochs))))
    assert out == CPU_PORT
    return slot_header(data[2:])
