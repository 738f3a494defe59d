"""The links inside servers of several GPUs, over which their hosts reach each other without the fabric.

Each pair of a server's hosts has a veth pair of its own, as GPUs have NVLinks. A host keeps its one address:
it reaches its neighbours' by host routes over these interfaces, and all others over its NIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.network import Host, Link
from mininet_topos.links import Shaping, gso_max_bytes, tc_commands

QUEUE_PACKETS = 256
"""The queue of each direction of a link inside a server."""


@dataclass(frozen=True)
class Servers:
    """Which hosts stand in one server (`hosts`), and the rate of the link between two of them."""

    hosts: tuple[tuple[str, ...], ...] = ()
    rate_mbps: float = 0.0

    def neighbours(self, host: str) -> tuple[str, ...]:
        """Return the other hosts of the host's server, in order."""
        return tuple(name for names in self.hosts if host in names for name in names if name != host)


def interface(servers: Servers, host: str, neighbour: str) -> str:
    """Return the name of the interface of `host` that leads to `neighbour`: `h1-s0` for the first one."""
    return f"{host}-s{servers.neighbours(host).index(neighbour)}"


def setup(
    servers: Servers, host: Host, neighbours: Sequence[Host], shaping: Shaping, route_options: str
) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` and `tc -batch` by which a host reaches its server's other hosts."""
    rate = servers.rate_mbps
    configured, shaped = [], []
    for other in neighbours:
        name = interface(servers, host.name, other.name)
        configured += [
            f"link set {name} gso_max_size {gso_max_bytes(rate, host.mtu)} up",
            f"route add {other.ip}/32 dev {name} src {host.ip} {route_options}",
        ]
        link = Link(host.name, 0, other.name, 0, rate, QUEUE_PACKETS, mtu=host.mtu)
        shaped += tc_commands(name, link, shaping)
    return configured, shaped
