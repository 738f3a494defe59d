"""A host of one job tries to reach another's over a running fabric: a program of its own, because it moves
into a network namespace.

Prints JSON: whose addresses it learned by ARP, which of its packets arrived where, and what the leaf dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import sys
import tempfile
from pathlib import Path

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from controlplane.fabric import Fabric
from controlplane.network import Host
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy
from controlplane.tables import Tables
from controlplane.tenants import Tenant
from controlplane.topology import parse_topology
from ebpf import in_netns
from machine.record import Record
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network
from schedulers.placement.cluster import Link, Placement

ETH_P_ALL = 3
TIMEOUT_S = 20.0
TENANTS = tuple(
    Tenant(
        name,
        vrf,
        (f"h{1 + number}", f"h{3 + number}"),
        Placement(
            name,
            2,
            (number, 2 + number),
            (0, 1),
            (2, 1),
            (number, number),
            (Link(0, number, 0), Link(1, number, 0)),
        ),
    )
    for number, (name, vrf) in enumerate((("a", 7), ("b", 8)))
)
"""Job a on h1 and h3 over spine 1, job b on h2 and h4 over spine 2."""


class Tap:
    """All that a host sends and receives, unfiltered by its kernel."""

    def __init__(self, stack: contextlib.ExitStack, netns: str, host: Host) -> None:
        self._socket = stack.enter_context(
            in_netns(netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        )
        self._socket.bind((host.interface, ETH_P_ALL))

    def send(self, packet: Packet) -> None:
        self._socket.send(bytes(packet))

    def received(self, wait: bool = False) -> list[Packet]:
        """What has come since the last call; with `wait`, at least one packet."""
        packets: list[Packet] = []
        while select.select([self._socket], [], [], TIMEOUT_S if wait and not packets else 0)[0]:
            frame, address = self._socket.recvfrom(65536)
            if address[2] != socket.PACKET_OUTGOING:
                packets.append(Ether(frame))
        assert packets or not wait, "nothing came"
        return packets


def main(target: str) -> None:
    shape = {"kind": "leaf-spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2}
    topology = parse_topology({"topology": {**shape, "target": target}}, "isolation")
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("test-isolation") as record,
        private_namespace(record) as namespace,
        Network(topology, record, Path(directory), namespace=namespace) as network,
        asyncio.Runner() as loop,
        contextlib.ExitStack() as stack,
    ):
        fabric = Fabric(topology, Pipeline.load())
        loop.run(fabric.__aenter__())
        stack.callback(lambda: loop.run(fabric.close()))
        loop.run(Tables(fabric, FabricPolicy()).apply(TENANTS, TENANTS))
        hosts = topology.host_by_name
        taps = {
            name: Tap(stack, f"/proc/{network.net[name].pid}/ns/net", host) for name, host in hosts.items()
        }
        own = hosts["h1"]
        learned = {}
        for name in ("h2", "h4", "h3"):  # the last one is answered: then those before have been through
            taps["h1"].send(arp(own, own.ip, hosts[name].ip))
        for packet in taps["h1"].received(wait=True):
            learned[packet[ARP].psrc] = packet[ARP].hwsrc
        for source in (own.ip, hosts["h2"].ip):
            for name in ("h2", "h4"):
                taps["h1"].send(udp(own, source, hosts[name], f"{source} to {name}"))
        taps["h1"].send(udp(own, hosts["h2"].ip, hosts["h3"], "forged"))
        taps["h1"].send(arp(own, hosts["h2"].ip, hosts["h3"].ip))
        taps["h1"].send(udp(own, own.ip, hosts["h3"], "last"))
        arrived = {"h3": texts(taps["h3"].received(wait=True))}
        arrived |= {name: texts(taps[name].received()) for name in ("h1", "h2", "h4")}
        drops = loop.run(fabric.drops())
        result = {
            "learned": learned,
            "arrived": arrived,
            "drops": {
                switch: {reason.name: count for reason, count in found.items() if count}
                for switch, found in drops.items()
            },
        }
        print(json.dumps(result))


def arp(own: Host, sender: str, target: str) -> Packet:
    """Ask for `target` in the name of `sender`."""
    return Ether(src=own.mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=own.mac, psrc=sender, pdst=target)


def udp(own: Host, source: str, destination: Host, text: str) -> Packet:
    """A packet to `destination` in the name of `source`."""
    return (
        Ether(src=own.mac, dst=destination.mac)
        / IP(src=source, dst=destination.ip)
        / UDP(sport=9, dport=9)
        / Raw(text.encode())
    )


def texts(packets: list[Packet]) -> list[str]:
    """What our own packets among these say."""
    ours = (packet for packet in packets if IP in packet and packet[IP].proto == socket.IPPROTO_UDP)
    return [packet[Raw].load.decode() for packet in ours]


if __name__ == "__main__":
    main(sys.argv[1])
