"""The desired state: each switch's entries, as a pure function of the topology.

Every switch routes by destination along shortest paths. If several ports are equally near, the route names a
group of ports. With `ecmp`, the 5-tuple's hash selects the port. With `source`, the ingress port does: the
i-th port that faces a host maps one-to-one to port f(i) of the group (vClos, section IV). On a spine with
parallel links, the k-th link of one leaf maps to the k-th link of another, so that a flow keeps its index.

A host's port is in the host's VRF, which has routes only to the hosts of that VRF. Ports between switches
are in the fabric VRF, which has routes to all hosts. On a leaf it has only the leaf's own hosts, so that no
packet goes up twice. Jobs that reserve links have entries of their own: `controlplane/tenants.py`.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from controlplane import constants as p4
from controlplane import entries
from controlplane.entries import Entities, Entity
from controlplane.network import Host, Port, Switch, Topology
from machine.errors import BadInput
from wire.flow import Flow
from wire.slot_header import HEADROOM_OFFSET, MAX_U32, RATE_UNIT_MBPS

Routing = Literal["ecmp", "source"]

FABRIC_VRF = 0
DEFAULT_VRF = 1

CARRIERS_PER_MBPS, LEAST_CARRIERS = 2.0, 100
"""How many carriers a host may send in 65.5 ms: what takes 5 % of its link, since they go ahead of data."""

ECN_THRESHOLD_PACKETS = 20
"""DCTCP's K for links of 1 Gbit/s (Alizadeh et al., SIGCOMM 2010, section 3.4)."""


@dataclass(frozen=True)
class FabricPolicy:
    """A fabric's routing and ECN marking.

    `vrfs` has the VRF (1 and above) of each host by name. A host that it does not list is in `other_vrf`;
    with None it is in no VRF, and all that it sends is dropped.
    `ecn_threshold_packets` is the queue length from which a switch marks ECN, for all ports or by port. 0
    never marks.
    """

    routing: Routing = "ecmp"
    vrfs: Mapping[str, int] = field(default_factory=dict)
    other_vrf: int | None = DEFAULT_VRF
    ecn_threshold_packets: int | Callable[[Port], int] = ECN_THRESHOLD_PACKETS
    rate_unit_mbps: int = RATE_UNIT_MBPS


def desired_state(topology: Topology, policy: FabricPolicy | None = None) -> dict[str, Entities]:
    """Return the entries of every switch, by name. Raises BadInput if they exceed the program's tables."""
    policy = policy or FabricPolicy()
    for name, vrf in policy.vrfs.items():
        if name not in topology.host_by_name:
            raise BadInput(f"VRFs: there is no host {name!r} in {topology.name}")
        check_vrf(name, vrf)
    distances = _distances(topology)
    state = {}
    for switch in topology.switches:
        state[switch.name] = _entries(topology, switch, policy, distances)
        entries.check_sizes(switch.name, state[switch.name])
    return state


def check_vrf(name: str, vrf: int) -> None:
    """Raise BadInput if no host or job, such as `name`, can have VRF `vrf`."""
    last = p4.COUNTER_VRF_COUNTER_SIZE - 1
    if not FABRIC_VRF < vrf <= last:
        raise BadInput(f"VRFs: {name} is in VRF {vrf}; use 1 to {last} (0 is the fabric's)")


def next_hops(topology: Topology, switch: Switch, host: Host) -> tuple[int, ...]:
    """Return the ports of `switch` on shortest paths to `host`, ascending; none if no link leads there."""
    return _next_hops(topology, switch, host, {host.leaf: switch_hops(topology, host.leaf)})


def source_port(topology: Topology, switch: Switch, ingress: int, group: Sequence[int]) -> int:
    """Return f(i): the port of `group` that source routing uses for packets from port `ingress`."""
    return group[_index(topology, switch, ingress) % len(group)]


def check_source_routing(topology: Topology) -> None:
    """Raise BadInput if `source` routing cannot give each host port of a leaf its own uplink."""
    if not topology.is_leaf_spine:
        raise BadInput(
            "maps host ports to uplinks, so it needs leaves and spines; use a leaf-spine topology or ecmp"
        )
    for leaf in topology.switches_of("leaf"):
        hosts = len(topology.hosts_of(leaf.name))
        uplinks = sum(port.peer in topology.switch_by_name for port in leaf.ports)
        if hosts > uplinks:
            raise BadInput(
                f"gives each host of a leaf an uplink of its own, and {leaf.name} has {hosts} hosts and "
                f"{uplinks} uplinks; add spines or links_per_pair, or use ecmp"
            )


def fixed_path(
    topology: Topology, routing: Routing, source: Host, destination: Host
) -> tuple[tuple[str, int], ...]:
    """Return the switches from `source` to `destination`, each with its egress port.

    Raises BadInput if the path is not fixed, because a hash selects it for each flow.
    """

    def refused(switch: Switch) -> int:
        raise BadInput(
            f"{topology.name}: from {source.name} to {destination.name} a flow's path is chosen by the "
            f"hash of {switch.name}; use source routing, or a topology with single paths"
        )

    return _path(topology, routing, source, destination, refused)


def flow_path(topology: Topology, routing: Routing, flow: Flow) -> tuple[tuple[str, int], ...]:
    """Return the switches that `flow` passes, each with its egress port. ECMP hashes as the program does.

    Raises BadInput if one of its addresses is no host's, or no path leads from one to the other.
    """
    hosts = {host.ip: host for host in topology.hosts}
    for address in (flow.source, flow.destination):
        if address not in hosts:
            raise BadInput(f"{topology.name}: no host has address {address}")
    chosen = flow_hash(flow)
    return _path(topology, routing, hosts[flow.source], hosts[flow.destination], lambda _: chosen)


def flow_hash(flow: Flow) -> int:
    """Return the hash by which ECMP selects a member of a group, modulo the members: CRC-16/ARC of addresses,
    protocol and ports (`ecmp_selector` in p4src/v1model/ingress.p4)."""
    ends = socket.inet_aton(flow.source) + socket.inet_aton(flow.destination)
    crc = 0
    for byte in ends + struct.pack("!BHH", flow.protocol, flow.source_port, flow.destination_port):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def _path(
    topology: Topology, routing: Routing, source: Host, destination: Host, hashed: Callable[[Switch], int]
) -> tuple[tuple[str, int], ...]:
    """Return the switches from host to host, each with its egress port. `hashed` is asked where ECMP selects
    among several ports."""
    switch, ingress = topology.switch_by_name[source.leaf], source.leaf_port
    path: list[tuple[str, int]] = []
    while True:
        ports = next_hops(topology, switch, destination)
        if not ports:
            raise BadInput(f"{topology.name}: no circuits lead from {source.name} to {destination.name}")
        if len(ports) == 1:
            egress = ports[0]
        elif routing == "ecmp":
            egress = ports[hashed(switch) % len(ports)]
        else:
            egress = source_port(topology, switch, ingress, ports)
        path.append((switch.name, egress))
        port = switch.port(egress)
        if port.peer == destination.name:
            return tuple(path)
        switch, ingress = topology.switch_by_name[port.peer], port.peer_port


def switch_hops(topology: Topology, root: str) -> dict[str, int]:
    """Return the hops to switch `root` from every switch that reaches it, by name."""
    distances, queue = {root: 0}, deque([root])
    while queue:
        name = queue.popleft()
        for port in topology.switch_by_name[name].ports:
            if port.peer in topology.switch_by_name and port.peer not in distances:
                distances[port.peer] = distances[name] + 1
                queue.append(port.peer)
    return distances


def _distances(topology: Topology) -> dict[str, dict[str, int]]:
    """The hops to each switch that has hosts, by name, from all switches."""
    leaves = dict.fromkeys(host.leaf for host in topology.hosts)
    return {leaf: switch_hops(topology, leaf) for leaf in leaves}


def _next_hops(
    topology: Topology, switch: Switch, host: Host, distances: Mapping[str, Mapping[str, int]]
) -> tuple[int, ...]:
    if host.leaf == switch.name:
        return (host.leaf_port,)
    to_leaf = distances[host.leaf]
    if switch.name not in to_leaf:
        return ()
    return tuple(
        port.number
        for port in switch.ports
        if to_leaf.get(port.peer, len(to_leaf)) == to_leaf[switch.name] - 1
    )


def _index(topology: Topology, switch: Switch, ingress: int) -> int:
    """Return i of f(i): a port's index among the host ports, or among the parallel links to its peer."""
    port = switch.port(ingress)
    alike = [
        other.number
        for other in switch.ports
        if (other.peer == port.peer or {other.peer, port.peer} <= topology.host_by_name.keys())
    ]
    return alike.index(ingress)


class _Hops:
    """Of one switch: the ports towards each host, and the groups of those that are equally near.

    No port leads to a host that present circuits do not reach.
    """

    def __init__(
        self, topology: Topology, switch: Switch, distances: Mapping[str, Mapping[str, int]]
    ) -> None:
        self.switch = switch
        self.ports = {host: _next_hops(topology, switch, host, distances) for host in topology.hosts}
        several = dict.fromkeys(ports for ports in self.ports.values() if len(ports) > 1)
        self.groups = {ports: number for number, ports in enumerate(several, 1)}

    def routes(self, vrf: int, hosts: Iterable[Host]) -> Iterable[Entity]:
        """Packets of `vrf` to each of `hosts`."""
        for host in hosts:
            ports = self.ports[host]
            if len(ports) > 1:
                yield entries.route_to_group(vrf, host, self.groups[ports])
            elif ports:
                yield entries.route_to_port(vrf, host, ports[0])

    def vrf(self, vrf: int, hosts: Sequence[Host]) -> Iterable[Entity]:
        """A VRF of `hosts`: nothing where none of them is."""
        local = [host for host in hosts if host.leaf == self.switch.name]
        yield from (entries.host_port(host, vrf) for host in local)
        yield from self.routes(vrf, hosts if local else ())


def vrf_entries(topology: Topology, vrf: int, hosts: Sequence[Host]) -> dict[str, Entities]:
    """Return what a VRF of `hosts` adds to each switch. Its packets share the links of all."""
    distances = _distances(topology)
    return {
        leaf: tuple(_Hops(topology, topology.switch_by_name[leaf], distances).vrf(vrf, hosts))
        for leaf in dict.fromkeys(host.leaf for host in hosts)
    }


def _entries(
    topology: Topology, switch: Switch, policy: FabricPolicy, distances: Mapping[str, Mapping[str, int]]
) -> Entities:
    hops = _Hops(topology, switch, distances)
    members = defaultdict[int, list[Host]](list)
    for host in topology.hosts:
        vrf = policy.vrfs.get(host.name, policy.other_vrf)
        if vrf is not None:
            members[vrf].append(host)
    local = topology.hosts_of(switch.name)
    uplinks = [port.number for port in switch.ports if port.peer in topology.switch_by_name]
    from_fabric = (local if switch.role == "leaf" else topology.hosts) if uplinks else ()
    return (
        *entries.ecmp(hops.groups),
        *(entries.switch_port(port, FABRIC_VRF) for port in uplinks),
        *hops.routes(FABRIC_VRF, from_fabric),
        *(entry for vrf, hosts in sorted(members.items()) for entry in hops.vrf(vrf, hosts)),
        *(_source_routes(topology, hops) if policy.routing == "source" else ()),
        *(entries.known_host(host) for host in (topology.hosts if local else ())),
        *(_link(port, policy) for port in switch.ports),
        *(_limits(host, switch.port(host.leaf_port), policy) for host in local),
    )


def _limits(host: Host, port: Port, policy: FabricPolicy) -> Entity:
    """What `host` may announce: as much as its link carries, by carriers that take a small part of it."""
    carriers = max(round(CARRIERS_PER_MBPS * port.rate_mbps), LEAST_CARRIERS)
    return entries.host_limits(host, min(int(port.rate_mbps / policy.rate_unit_mbps), MAX_U32), carriers)


def _source_routes(topology: Topology, hops: _Hops) -> Iterable[Entity]:
    """Yield an entry per ingress port and group. Only packets routed to a group look up this table."""
    for ports in hops.groups:
        inside = [host.ip for host, others in hops.ports.items() if others == ports]
        outside = [host.ip for host, others in hops.ports.items() if len(others) > 1 and others != ports]
        for network in _cover(inside, outside):
            for port in hops.switch.ports:
                # Packets from an uplink are never routed to a group of uplinks again.
                if port.number not in ports:
                    uplink = source_port(topology, hops.switch, port.number, ports)
                    yield entries.source_route(port.number, uplink, 1 + network.prefixlen, network)


def _cover(inside: Sequence[str], outside: Sequence[str]) -> list[ipaddress.IPv4Network]:
    """Return a few prefixes that cover every address of `inside` and none of `outside`."""
    excluded = [int(ipaddress.IPv4Address(address)) for address in outside]

    def split(network: ipaddress.IPv4Network, addresses: list[int]) -> list[ipaddress.IPv4Network]:
        low, high = int(network.network_address), int(network.broadcast_address)
        if not addresses:
            return []
        if not any(low <= address <= high for address in excluded):
            return [network]
        halves = network.subnets()
        return [
            part
            for half in halves
            for part in split(half, [a for a in addresses if ipaddress.IPv4Address(a) in half])
        ]

    return split(ipaddress.IPv4Network("0.0.0.0/0"), [int(ipaddress.IPv4Address(ip)) for ip in inside])


def _link(port: Port, policy: FabricPolicy) -> Entity:
    capacity = round(port.rate_mbps / policy.rate_unit_mbps)
    threshold = policy.ecn_threshold_packets
    if callable(threshold):
        threshold = threshold(port)
    threshold = min(threshold, port.queue_packets - 1)  # mark at least the last packet that fits
    return entries.link(port.number, capacity + HEADROOM_OFFSET, threshold)
