"""The desired state: each switch's entries, as a pure function of the topology.

Every switch routes by destination along shortest paths. If several ports are equally near, the route names a
group of ports. With `ecmp`, the 5-tuple's hash selects the port. With `source`, the ingress port does: the
i-th port that faces a host maps one-to-one to port f(i) of the group (vClos, section IV). On a spine with
parallel links, the k-th link of one leaf maps to the k-th link of another, so that a flow keeps its index.

A host's port is in the host's VRF, which has routes only to the hosts of that VRF. Ports between switches
are in the fabric VRF, which has routes to all hosts. On a leaf it has only the leaf's own hosts, so that no
packet goes up twice.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import finsy as fy

from controlplane import constants as p4
from controlplane.network import Host, Port, Switch, Topology
from machine.errors import BadInput
from wire.slot_header import HEADROOM_OFFSET, RATE_UNIT_MBPS

Routing = Literal["ecmp", "source"]
Entity = fy.P4TableEntry | fy.P4ActionProfileMember | fy.P4ActionProfileGroup
Entities = tuple[Entity, ...]

FABRIC_VRF = 0
DEFAULT_VRF = 1

ECN_THRESHOLD_PACKETS = 20
"""DCTCP's K for links of 1 Gbit/s (Alizadeh et al., SIGCOMM 2010, section 3.4)."""


@dataclass(frozen=True)
class FabricPolicy:
    """A fabric's routing and ECN marking.

    `vrfs` has the VRF (1 and above) of each host by name. A host that it does not list is in VRF 1.
    `ecn_threshold_packets` is the queue length from which a switch marks ECN, for all ports or by port. 0
    never marks.
    """

    routing: Routing = "ecmp"
    vrfs: Mapping[str, int] = field(default_factory=dict)
    ecn_threshold_packets: int | Callable[[Port], int] = ECN_THRESHOLD_PACKETS
    rate_unit_mbps: int = RATE_UNIT_MBPS


def desired_state(topology: Topology, policy: FabricPolicy | None = None) -> dict[str, Entities]:
    """Return the entries of every switch, by name. Raises BadInput if they exceed the program's tables."""
    policy = policy or FabricPolicy()
    last_vrf = p4.COUNTER_VRF_COUNTER_SIZE - 1
    for name, vrf in policy.vrfs.items():
        if name not in topology.host_by_name:
            raise BadInput(f"VRFs: there is no host {name!r} in {topology.name}")
        if not FABRIC_VRF < vrf <= last_vrf:
            raise BadInput(f"VRFs: {name} is in VRF {vrf}; use 1 to {last_vrf} (0 is the fabric's)")
    distances = {switch.name: switch_hops(topology, switch.name) for switch in topology.switches}
    return {switch.name: _entries(topology, switch, policy, distances) for switch in topology.switches}


def next_hops(topology: Topology, switch: Switch, host: Host) -> tuple[int, ...]:
    """Return the ports of `switch` on shortest paths to `host`, ascending."""
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
    for leaf in (switch for switch in topology.switches if switch.role == "leaf"):
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
    switch, ingress = topology.switch_by_name[source.leaf], source.leaf_port
    path: list[tuple[str, int]] = []
    while True:
        ports = next_hops(topology, switch, destination)
        if len(ports) > 1 and routing == "ecmp":
            raise BadInput(
                f"{topology.name}: from {source.name} to {destination.name} a flow's path is chosen by the "
                f"hash of {switch.name}; use source routing, or a topology with single paths"
            )
        egress = ports[0] if len(ports) == 1 else source_port(topology, switch, ingress, ports)
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


def _next_hops(
    topology: Topology, switch: Switch, host: Host, distances: Mapping[str, Mapping[str, int]]
) -> tuple[int, ...]:
    if host.leaf == switch.name:
        return (host.leaf_port,)
    to_leaf = distances[host.leaf]
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


def _entries(
    topology: Topology, switch: Switch, policy: FabricPolicy, distances: Mapping[str, Mapping[str, int]]
) -> Entities:
    hops = {host: _next_hops(topology, switch, host, distances) for host in topology.hosts}
    groups = {
        ports: number
        for number, ports in enumerate(dict.fromkeys(ports for ports in hops.values() if len(ports) > 1), 1)
    }
    vrf_of_port = {
        port.number: policy.vrfs.get(port.peer, DEFAULT_VRF)
        if port.peer in topology.host_by_name
        else FABRIC_VRF
        for port in switch.ports
    }
    known = {
        vrf: [host for host in topology.hosts if _knows(switch, vrf, host, policy)]
        for vrf in sorted(set(vrf_of_port.values()))
    }
    local_hosts = topology.hosts_of(switch.name)
    entries = (
        *_ecmp(groups),
        *(_vrf(number, vrf) for number, vrf in vrf_of_port.items()),
        *(_route(vrf, host, hops[host], groups) for vrf, hosts in known.items() for host in hosts),
        *(_source_routes(topology, switch, hops, groups) if policy.routing == "source" else ()),
        *(_arp_reply(host) for host in (topology.hosts if local_hosts else ())),
        *(_link(port, policy) for port in switch.ports),
    )
    _check_sizes(switch, entries)
    return entries


def _knows(switch: Switch, vrf: int, host: Host, policy: FabricPolicy) -> bool:
    if vrf == FABRIC_VRF:
        return switch.role != "leaf" or host.leaf == switch.name
    return vrf == policy.vrfs.get(host.name, DEFAULT_VRF)


def _ecmp(groups: Mapping[tuple[int, ...], int]) -> Iterable[Entity]:
    """Yield a member per uplink, with the port's number as its id, and a group per set of near ports."""
    profile = p4.PROFILE_ECMP_SELECTOR
    for port in sorted({port for ports in groups for port in ports}):
        action = fy.Action(p4.ACTION_TO_UPLINK, **{p4.PARAM_TO_UPLINK_PORT: port})
        yield fy.P4ActionProfileMember(profile, member_id=port, action=action)
    for ports, group in groups.items():
        members = [fy.P4Member(port, weight=1) for port in ports]
        yield fy.P4ActionProfileGroup(profile, group_id=group, members=members)
        yield fy.P4TableEntry(
            p4.TABLE_ECMP,
            match=fy.Match({p4.MATCH_ECMP_GROUP: group}),
            action=fy.IndirectAction(group_id=group),
        )


def _vrf(port: int, vrf: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        p4.TABLE_VRF,
        match=fy.Match({p4.MATCH_VRF_INGRESS_PORT: port}),
        action=fy.Action(p4.ACTION_SET_VRF, **{p4.PARAM_SET_VRF_VRF: vrf}),
    )


def _route(
    vrf: int, host: Host, ports: tuple[int, ...], groups: Mapping[tuple[int, ...], int]
) -> fy.P4TableEntry:
    if len(ports) > 1:
        action = fy.Action(p4.ACTION_TO_GROUP, **{p4.PARAM_TO_GROUP_GROUP: groups[ports]})
    else:
        parameters = {p4.PARAM_TO_PORT_PORT: ports[0], p4.PARAM_TO_PORT_DMAC: host.mac}
        action = fy.Action(p4.ACTION_TO_PORT, **parameters)
    match = {p4.MATCH_ROUTE_VRF: vrf, p4.MATCH_ROUTE_DST: f"{host.ip}/32"}
    return fy.P4TableEntry(p4.TABLE_ROUTE, match=fy.Match(match), action=action)


def _source_routes(
    topology: Topology,
    switch: Switch,
    hops: Mapping[Host, tuple[int, ...]],
    groups: Mapping[tuple[int, ...], int],
) -> Iterable[fy.P4TableEntry]:
    """Yield an entry per ingress port and group. Only packets routed to a group look up this table."""
    for ports in groups:
        inside = [host.ip for host in hops if hops[host] == ports]
        outside = [host.ip for host in hops if len(hops[host]) > 1 and hops[host] != ports]
        for network in _cover(inside, outside):
            for port in switch.ports:
                match: dict[str, object] = {p4.MATCH_SOURCE_ROUTE_INGRESS_PORT: port.number}
                if network.prefixlen:
                    match[p4.MATCH_SOURCE_ROUTE_DST] = (int(network.network_address), int(network.netmask))
                uplink = source_port(topology, switch, port.number, ports)
                # Packets from an uplink are never routed to a group of uplinks again.
                if port.number not in ports:
                    yield fy.P4TableEntry(
                        p4.TABLE_SOURCE_ROUTE,
                        match=fy.Match(match),
                        priority=1 + network.prefixlen,
                        action=fy.Action(p4.ACTION_TO_UPLINK, **{p4.PARAM_TO_UPLINK_PORT: uplink}),
                    )


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


def _arp_reply(host: Host) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        p4.TABLE_ARP_REPLY,
        match=fy.Match({p4.MATCH_ARP_REPLY_TARGET_IP: host.ip}),
        action=fy.Action(p4.ACTION_REPLY_ARP, **{p4.PARAM_REPLY_ARP_MAC: host.mac}),
    )


def _link(port: Port, policy: FabricPolicy) -> fy.P4TableEntry:
    capacity = round(port.rate_mbps / policy.rate_unit_mbps)
    threshold = policy.ecn_threshold_packets
    if callable(threshold):
        threshold = threshold(port)
    threshold = min(threshold, port.queue_packets - 1)  # mark at least the last packet that fits
    parameters = {
        p4.PARAM_SET_LINK_CAPACITY: capacity + HEADROOM_OFFSET,
        p4.PARAM_SET_LINK_ECN_THRESHOLD: threshold,
    }
    return fy.P4TableEntry(
        p4.TABLE_LINK,
        match=fy.Match({p4.MATCH_LINK_EGRESS_PORT: port.number}),
        action=fy.Action(p4.ACTION_SET_LINK, **parameters),
    )


_SIZES: dict[str, int] = {
    name: getattr(p4, f"{constant}_SIZE")
    for constant, name in vars(p4).items()
    if constant.startswith(("TABLE_", "PROFILE_")) and hasattr(p4, f"{constant}_SIZE")
}
"""How many entries or members fit each table and action profile, by its name in P4Info."""


def _check_sizes(switch: Switch, entries: Entities) -> None:
    used: dict[str, int] = defaultdict(int)
    for entry in entries:
        if isinstance(entry, fy.P4ActionProfileGroup):
            continue
        used[entry.table_id if isinstance(entry, fy.P4TableEntry) else entry.action_profile_id] += 1
    for name, count in used.items():
        if count > _SIZES[name]:
            raise BadInput(
                f"{switch.name}: {count} entries do not fit {name} of {_SIZES[name]}; "
                f"use a smaller topology, or raise the size in p4src/shared/size.p4 and `make p4`"
            )
