"""The entries of a job that has the network: its VRF, and the routes of its placement.

The ports that a job holds, those of its hosts and of its links, are in the job's VRF on every switch. That
VRF has routes to the job's hosts only: on a leaf it is a virtual leaf, on a spine a virtual spine. A rank
sends over its own uplink, because a leaf routes by ingress port. A spine sends down by the link of the same
virtual spine and the destination's virtual leaf. Over a circuit between two leaves a packet needs no spine.
Source: vClos, 5.2 and 8.1.

A job that reserves no links has a VRF of its hosts, and its packets take shortest paths, as the fabric's
policy says.

Entries of different jobs have different keys: so a job comes and goes without a change to others.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from controlplane import entries
from controlplane.entries import Entities, Entity
from controlplane.network import Host, Port, Topology
from controlplane.routing import FabricPolicy, check_vrf, desired_state, vrf_entries
from machine.errors import BadInput

if TYPE_CHECKING:
    from schedulers.placement.cluster import Placement

SOURCE_ROUTED = 0xFFFF
"""A group without members: only a source route says where a packet leaves."""

PRIORITY = 64
"""Of a job's source routes: above those of the fabric, whose priorities end at 33."""

_Item = TypeVar("_Item")

LinkEnd = tuple[int, int]
"""A switch's index among its kind and a port's among those of the fabric, as a cluster's `Port` has them."""


@dataclass(frozen=True)
class Tenant:
    """A job that has the network: its VRF, its hosts by name in the order of the ranks, and what it holds."""

    name: str
    vrf: int
    hosts: tuple[str, ...]
    placement: Placement


def cluster_state(
    topology: Topology, policy: FabricPolicy, tenants: Collection[Tenant]
) -> dict[str, Entities]:
    """Return the entries of every switch, by name, for a cluster of these jobs.

    A host without a job is in no VRF: it reaches nobody. Raises BadInput if two jobs hold the same thing, if
    jobs that reserve links are beside others that share all, and if the entries exceed the program's tables.
    """
    check_tenants(tenants)
    state = desired_state(topology, cluster_policy(policy))
    for tenant in tenants:
        for switch, own in tenant_entries(topology, tenant).items():
            state[switch] = entries.merged(state[switch], own)
    for switch, found in state.items():
        entries.check_sizes(switch, found)
    return state


def check_tenants(tenants: Collection[Tenant]) -> None:
    """Raise BadInput if two jobs hold the same thing, or if only some that span leaves reserve links."""
    holder: dict[str, str] = {}
    for tenant in tenants:
        ports = zip(tenant.placement.leaves, tenant.placement.ports, strict=False)
        uplinks = (f"uplink port {port} of leaf {leaf}" for leaf, port in ports)
        for held in (f"VRF {tenant.vrf}", *tenant.hosts, *uplinks):
            if held in holder:
                raise BadInput(f"job {tenant.name}: {held} is held by job {holder[held]} already")
            holder[held] = tenant.name
    reserving = [tenant.name for tenant in tenants if tenant.placement.ports]
    sharing = [
        tenant.name
        for tenant in tenants
        if not tenant.placement.ports and len(set(tenant.placement.leaves)) > 1
    ]
    if reserving and sharing:
        raise BadInput(
            f"job {sharing[0]} shares the links between leaves, and job {reserving[0]} reserves some; "
            f"place both with the same strategy"
        )


def cluster_policy(policy: FabricPolicy) -> FabricPolicy:
    """Return the policy of a cluster without jobs, to whose state `tenant_entries` adds those of a job."""
    return replace(policy, vrfs={}, other_vrf=None)


def tenant_entries(topology: Topology, tenant: Tenant) -> dict[str, Entities]:
    """Return the entries of one job, by switch. They replace the fabric's for the ports that the job holds.

    The placement numbers the topology's parts as `controlplane.cluster` says. Raises BadInput if the job does
    not fit the topology.
    """
    check_vrf(f"job {tenant.name}", tenant.vrf)
    hosts = _hosts(topology, tenant)
    if not tenant.placement.ports:
        return vrf_entries(topology, tenant.vrf, hosts)
    result: dict[str, list[Entity]] = defaultdict(list)
    for leaf in dict.fromkeys(host.leaf for host in hosts):
        result[leaf] += _at_leaf(topology, tenant, hosts, leaf)
    for spine, own in _at_spines(topology, tenant, hosts).items():
        result[spine] += own
    return {switch: tuple(own) for switch, own in result.items()}


def _at_leaf(topology: Topology, tenant: Tenant, hosts: list[Host], leaf: str) -> list[Entity]:
    own: list[Entity] = []
    for host, port in zip(hosts, tenant.placement.ports, strict=True):
        if host.leaf != leaf:
            own.append(entries.route_to_group(tenant.vrf, host, SOURCE_ROUTED))
            continue
        uplink = _uplink(topology, tenant, leaf, port).number
        own += [
            entries.host_port(host, tenant.vrf),
            entries.route_to_port(tenant.vrf, host, host.leaf_port),
            entries.switch_port(uplink, tenant.vrf),
            entries.source_route(host.leaf_port, uplink, PRIORITY),
        ]
    return own


def _at_spines(topology: Topology, tenant: Tenant, hosts: list[Host]) -> dict[str, list[Entity]]:
    """With one virtual spine of the job on a spine, the destination alone decides; with several, the ingress
    port says which of them it is."""
    spines = topology.switches_of("spine")
    ends = _spine_ends(topology, tenant, hosts)
    _, width = tenant.placement.shape
    result: dict[str, list[Entity]] = {}
    for index in sorted({spine for spine, _ in ends}):
        spine = _nth(spines, index, f"job {tenant.name}: {topology.name} has no spine")
        ports = topology.fabric_ports_of(spine.name)
        # Of each virtual spine: the ports to the virtual leaves, in order.
        virtual: dict[int, list[int]] = defaultdict(list)
        for rank, (at, port) in enumerate(ends):
            if at == index:
                own_port = _nth(ports, port, f"job {tenant.name}: {spine.name} has no port")
                virtual[rank % width].append(own_port.number)
        own: list[Entity] = [
            entries.switch_port(port, tenant.vrf) for links in virtual.values() for port in links
        ]
        for rank, host in enumerate(hosts):
            downs = [links[rank // width] for links in virtual.values()]
            if len(downs) == 1:
                own.append(entries.route_to_port(tenant.vrf, host, downs[0]))
                continue
            own.append(entries.route_to_group(tenant.vrf, host, SOURCE_ROUTED))
            address = ipaddress.IPv4Network(host.ip)
            own += [
                entries.source_route(port, down, PRIORITY, address)
                for links, down in zip(virtual.values(), downs, strict=True)
                for port in links
                if port != down
            ]
        result[spine.name] = own
    return result


def _spine_ends(topology: Topology, tenant: Tenant, hosts: list[Host]) -> list[LinkEnd]:
    """The spine and its port at the other end of each rank's uplink; none where circuits join two leaves."""
    placement = tenant.placement
    if not placement.links:
        return []
    circuits: Mapping[LinkEnd, LinkEnd] = {each.a[1:]: each.b[1:] for each in placement.circuits}
    ends = []
    for host, link, own in zip(hosts, placement.links, placement.ports, strict=True):
        if (link.leaf, own) in circuits:
            ends.append(circuits[link.leaf, own])
            continue
        port = _uplink(topology, tenant, host.leaf, own)
        far = [each.number for each in topology.fabric_ports_of(port.peer)]
        ends.append((link.spine, far.index(port.peer_port)))
    return ends


def _hosts(topology: Topology, tenant: Tenant) -> list[Host]:
    placement = tenant.placement
    if len(tenant.hosts) != len(placement.gpus):
        raise BadInput(
            f"job {tenant.name}: {len(tenant.hosts)} hosts for {len(placement.gpus)} ranks; give one each"
        )
    leaves = topology.switches_of("leaf")
    hosts = []
    for name, leaf in zip(tenant.hosts, placement.leaves, strict=True):
        host = topology.host_by_name.get(name)
        if host is None:
            raise BadInput(f"job {tenant.name}: there is no host {name!r} in {topology.name}")
        expected = _nth(leaves, leaf, f"job {tenant.name}: {topology.name} has no leaf")
        if host.leaf != expected.name:
            raise BadInput(f"job {tenant.name}: {name} is on {host.leaf}, its placement says {expected.name}")
        hosts.append(host)
    return hosts


def _uplink(topology: Topology, tenant: Tenant, leaf: str, index: int) -> Port:
    return _nth(topology.fabric_ports_of(leaf), index, f"job {tenant.name}: {leaf} has no uplink port")


def _nth(items: Sequence[_Item], index: int, what: str) -> _Item:
    if not 0 <= index < len(items):
        raise BadInput(f"{what} {index}, but {len(items)} of them; the cluster is not the topology's")
    return items[index]
