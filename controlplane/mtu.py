"""Which hosts send frames that are too long for a link on their way.

Switches forward at layer 2, where nothing fragments: the receiving end of a link drops a frame longer than
its MTU without an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from controlplane.network import Host, Port, Topology
from controlplane.routing import switch_hops

_Links = Mapping[tuple[str, int], tuple[str, int]]
"""The name and the MTU of each link, by the switch and the port at either end."""


def mtu_of(topology: Topology, port: Port) -> int:
    """Return the MTU of a port's link. A host at its other end may take less than the link."""
    host = topology.host_by_name.get(port.peer)
    return port.mtu if host is None else min(port.mtu, host.mtu)


def too_long(topology: Topology) -> Iterator[str]:
    """Yield a line for each MTU of hosts that exceeds that of a link on a shortest path to another host.

    With an optical circuit switch, every port that is plugged into it counts: circuits come and go.
    """
    plugs = topology.ocs.plugs if topology.ocs is not None else ()
    limits = [link.mtu for link in topology.links] + [host.mtu for host in topology.hosts]
    lowest = min([*limits, *(plug.mtu for plug in plugs)], default=0)
    links = _links(topology)
    refused: dict[tuple[int, str, int], list[str]] = defaultdict(list)
    for host in topology.hosts:
        if host.mtu <= lowest:
            continue
        name, mtu = next((link for link in _on_the_way(topology, host, links) if link[1] < host.mtu), ("", 0))
        if name:
            refused[host.mtu, name, mtu].append(host.name)
    for (sent, name, mtu), hosts in refused.items():
        others = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
        yield (
            f"host {hosts[0]}{others}: mtu {sent} exceeds {mtu} of link {name}: switches do not fragment, so "
            f"longer packets would be lost; lower mtu at the host, or raise it there"
        )


def _links(topology: Topology) -> _Links:
    """A host's end may take less than its link."""
    own = {host.name: host.mtu for host in topology.hosts}
    found = {}
    for link in topology.links:
        mtu = min(own.get(link.a, link.mtu), own.get(link.b, link.mtu), link.mtu)
        for end in ((link.a, link.a_port), (link.b, link.b_port)):
            found[end] = (f"{link.a}-{link.b}", mtu)
    return found


def _on_the_way(topology: Topology, host: Host, links: _Links) -> Iterator[tuple[str, int]]:
    """Yield name and MTU of the links on the shortest paths from `host` to all others, its own first."""
    own = next(link for link in topology.links if host.name in (link.a, link.b))
    yield f"{own.a}-{own.b}", own.mtu
    if topology.ocs is not None:
        for plug in topology.ocs.plugs:
            yield f"{plug.switch}-ocs{plug.ocs_port}", plug.mtu
    others = [other for other in topology.hosts if other != host]
    for leaf in dict.fromkeys(other.leaf for other in others):
        hops = switch_hops(topology, leaf)
        frontier, reached = [host.leaf], {host.leaf}
        while frontier:
            name = frontier.pop()
            for port in topology.switch_by_name[name].ports:
                if name in hops and hops.get(port.peer) == hops[name] - 1:
                    yield links[name, port.number]
                    if port.peer not in reached:
                        reached.add(port.peer)
                        frontier.append(port.peer)
    for other in others:
        yield links[other.leaf, other.leaf_port]
