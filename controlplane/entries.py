"""One function for each table of the switch program: its entries, as P4Runtime entities."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

import finsy as fy

from controlplane import constants as p4
from controlplane.network import Host
from machine.errors import BadInput

Entity = fy.P4TableEntry | fy.P4ActionProfileMember | fy.P4ActionProfileGroup
Entities = tuple[Entity, ...]

ANY_ADDRESS = ipaddress.IPv4Network("0.0.0.0/0")


def switch_port(port: int, vrf: int) -> fy.P4TableEntry:
    """What comes from the switch at `port` is in `vrf`. Its source was checked where it came in."""
    return _entry(
        p4.TABLE_VRF, {p4.MATCH_VRF_INGRESS_PORT: port}, p4.ACTION_SET_VRF, {p4.PARAM_SET_VRF_VRF: vrf}
    )


def host_port(host: Host, vrf: int) -> fy.P4TableEntry:
    """What comes from `host` is in `vrf`, and is dropped if it has another source address than the host's."""
    parameters = {p4.PARAM_SET_HOST_VRF: vrf, p4.PARAM_SET_HOST_ADDRESS: int(ipaddress.IPv4Address(host.ip))}
    return _entry(p4.TABLE_VRF, {p4.MATCH_VRF_INGRESS_PORT: host.leaf_port}, p4.ACTION_SET_HOST, parameters)


def host_limits(host: Host, load: int, carriers: int) -> fy.P4TableEntry:
    """`host` announces at most `load` rate units in a slot, by at most `carriers` carriers in 65.5 ms."""
    parameters = {p4.PARAM_SET_LIMITS_LOAD: load, p4.PARAM_SET_LIMITS_CARRIERS: carriers}
    match = {p4.MATCH_LIMITS_INGRESS_PORT: host.leaf_port}
    return _entry(p4.TABLE_LIMITS, match, p4.ACTION_SET_LIMITS, parameters)


def route_to_port(vrf: int, host: Host, port: int) -> fy.P4TableEntry:
    """Packets of `vrf` to `host` leave at `port`."""
    parameters = {p4.PARAM_TO_PORT_PORT: port, p4.PARAM_TO_PORT_DMAC: host.mac}
    return _entry(p4.TABLE_ROUTE, _route(vrf, host), p4.ACTION_TO_PORT, parameters)


def route_to_group(vrf: int, host: Host, group: int) -> fy.P4TableEntry:
    """Packets of `vrf` to `host` leave where a source route says, or else at a port of `group`."""
    return _entry(p4.TABLE_ROUTE, _route(vrf, host), p4.ACTION_TO_GROUP, {p4.PARAM_TO_GROUP_GROUP: group})


def source_route(
    ingress: int, port: int, priority: int, destination: ipaddress.IPv4Network = ANY_ADDRESS
) -> fy.P4TableEntry:
    """Packets from port `ingress` to `destination` that are routed to a group leave at `port`."""
    match: dict[str, object] = {p4.MATCH_SOURCE_ROUTE_INGRESS_PORT: ingress}
    if destination.prefixlen:
        match[p4.MATCH_SOURCE_ROUTE_DST] = (int(destination.network_address), int(destination.netmask))
    parameters = {p4.PARAM_TO_UPLINK_PORT: port}
    return _entry(p4.TABLE_SOURCE_ROUTE, match, p4.ACTION_TO_UPLINK, parameters, priority)


def ecmp(groups: Mapping[tuple[int, ...], int]) -> Iterator[Entity]:
    """Yield a member per port, with the port's number as its id, and a group per set of ports.

    Every member has weight 1, no port is watched, and a group says how large it may become: a Tofino takes
    no other groups (`docs/tofino.md`).
    """
    profile, max_size = p4.PROFILE_ECMP_SELECTOR, p4.PROFILE_ECMP_SELECTOR_GROUP_SIZE
    for port in sorted({port for ports in groups for port in ports}):
        action = fy.Action(p4.ACTION_TO_UPLINK, **{p4.PARAM_TO_UPLINK_PORT: port})
        yield fy.P4ActionProfileMember(profile, member_id=port, action=action)
    for ports, group in groups.items():
        members = [fy.P4Member(port, weight=1) for port in ports]
        yield fy.P4ActionProfileGroup(profile, group_id=group, max_size=max_size, members=members)
        yield fy.P4TableEntry(
            p4.TABLE_ECMP,
            match=fy.Match({p4.MATCH_ECMP_GROUP: group}),
            action=fy.IndirectAction(group_id=group),
        )


def known_host(host: Host) -> fy.P4TableEntry:
    """`host` is one of the fabric. A leaf answers ARP for it to those whose VRF has a route to it."""
    match = {p4.MATCH_HOST_ADDRESS: host.ip}
    return _entry(p4.TABLE_HOST, match, p4.ACTION_IS_HOST, {p4.PARAM_IS_HOST_MAC: host.mac})


def link(port: int, capacity: int, ecn_threshold: int) -> fy.P4TableEntry:
    """The link behind `port`, with its capacity in rate units and the queue length that marks."""
    parameters = {p4.PARAM_SET_LINK_CAPACITY: capacity, p4.PARAM_SET_LINK_ECN_THRESHOLD: ecn_threshold}
    return _entry(p4.TABLE_LINK, {p4.MATCH_LINK_EGRESS_PORT: port}, p4.ACTION_SET_LINK, parameters)


def merged(*layers: Iterable[Entity]) -> Entities:
    """Return the entries of all layers. Of two for the same key, the later layer's counts."""
    return tuple({_key(entity): entity for layer in layers for entity in layer}.values())


def check_sizes(switch: str, entries: Iterable[Entity]) -> None:
    """Raise BadInput if the entries of a switch exceed the program's tables, or the members a group."""
    used: dict[str, int] = dict.fromkeys(_SIZES, 0)
    for entry in entries:
        if isinstance(entry, fy.P4TableEntry):
            used[entry.table_id] += 1
        elif isinstance(entry, fy.P4ActionProfileMember):
            used[entry.action_profile_id] += 1
        elif len(entry.members or ()) > entry.max_size:
            raise BadInput(
                f"{switch}: {len(entry.members or ())} equally near ports do not fit a group of "
                f"{entry.max_size}; use fewer links, or raise ECMP_GROUP_MAX in p4src/shared/size.p4 "
                f"and `make p4`"
            )
    for name, count in used.items():
        if count > _SIZES[name]:
            raise BadInput(
                f"{switch}: {count} entries do not fit {name} of {_SIZES[name]}; "
                f"use a smaller topology, or raise the size in p4src/shared/size.p4 and `make p4`"
            )


_SIZES: dict[str, int] = {
    name: getattr(p4, f"{constant}_SIZE")
    for constant, name in vars(p4).items()
    if constant.startswith(("TABLE_", "PROFILE_")) and hasattr(p4, f"{constant}_SIZE")
}
"""How many entries or members fit each table and action profile, by its name in P4Info."""


def _entry(
    table: str,
    match: Mapping[str, object],
    action: str,
    parameters: Mapping[str, object],
    priority: int = 0,
) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        table, match=fy.Match(match), priority=priority, action=fy.Action(action, **parameters)
    )


def _route(vrf: int, host: Host) -> dict[str, object]:
    return {p4.MATCH_ROUTE_VRF: vrf, p4.MATCH_ROUTE_DST: f"{host.ip}/32"}


def _key(entity: Entity) -> tuple[object, ...]:
    match entity:
        case fy.P4TableEntry():
            return entity.table_id, entity.priority, frozenset((entity.match or {}).items())
        case fy.P4ActionProfileMember():
            return entity.action_profile_id, "member", entity.member_id
        case fy.P4ActionProfileGroup():
            return entity.action_profile_id, "group", entity.group_id
