"""Which links jobs share: each direction of a link, with its capacity and the jobs that cross it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from controlplane.routing import flow_path
from controlplane.topology import Topology
from entrain.bound import MBPS
from schedulers.cassini.affinity import Link
from wire.flow import Flow

if TYPE_CHECKING:
    from entrain.policies.policy import FileRouting  # whose package asks for links


def shared_links(
    topology: Topology, routing: FileRouting, jobs: Mapping[str, Iterable[Flow]]
) -> tuple[Link, ...]:
    """Return the links that jobs' flows cross, in the topology's order; each direction is one.

    Flows go where switches send them: under ECMP their ports decide (`controlplane.routing.flow_path`), so
    these need to be those of the open connections. Under vClos a job's links between switches are its own,
    and only those of hosts are returned. Raises BadInput as `flow_path`.
    """
    jobs_on: dict[str, dict[str, None]] = {}
    for job, flows in jobs.items():
        for flow in flows:
            for link in crossed(topology, routing, flow):
                jobs_on.setdefault(link, {})[job] = None
    return tuple(
        Link(name, rate_mbps * MBPS, tuple(jobs_on[name]))
        for name, rate_mbps in directions(topology)
        if name in jobs_on
    )


def crossed(topology: Topology, routing: FileRouting, flow: Flow) -> tuple[str, ...]:
    """Return the links that a flow crosses, in their order; the rest is as in `shared_links`."""
    path = flow_path(topology, "source" if routing == "vclos" else routing, flow)
    own = path[-1:] if routing == "vclos" else path
    first = next(host.link for host in topology.hosts if host.ip == flow.source)
    return first, *(topology.switch_by_name[switch].link(port) for switch, port in own)


def slowest_mbps(links: Iterable[Link], job: str) -> float:
    """Return the rate of the slowest of the links that a job crosses, Mbit/s."""
    return min((link.capacity for link in links if job in link.jobs), default=math.inf) / MBPS


def directions(topology: Topology) -> Iterator[tuple[str, float]]:
    """Every direction of a link: its name and its rate, Mbit/s."""
    for host in topology.hosts:
        yield host.link, topology.switch_by_name[host.leaf].port(host.leaf_port).rate_mbps
    for switch in topology.switches:
        for port in switch.ports:
            yield switch.link(port.number), port.rate_mbps
