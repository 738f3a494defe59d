"""The network of Cassini's testbed (figure 4.10): 24 servers, 13 switches, 48 links, 2:1 oversubscribed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedulers.compiled import Floats, Ints, Routes
from schedulers.placement.cluster import Cluster
from simulation.clusters.models import Pattern
from simulation.clusters.scheduler import GPUs
from simulation.topology import GBIT, Topology

RACKS, SERVERS, PLANES, PODS = 6, 4, 2, 3
"""Racks and servers of each; uplinks of a rack, which are also switches above each pair of racks; pairs."""
LINK = 50 * GBIT
"""bytes/s (4.5.1)."""


def testbed() -> Topology:
    """Return the network: 6 racks of 4 servers, 2 switches above each pair of racks, which has 1 link to each
    of the two and 2 to the core, and the core. Hosts are servers.

    Switches match on the destination (4.5.1): its number says which of two links a flow takes, up and down.
    """
    servers = RACKS * SERVERS
    up = 2 * servers
    down = up + RACKS * PLANES
    core_up = down + RACKS * PLANES
    core_down = core_up + PODS * PLANES * 2
    names = [f"s{s}-{way}" for way in ("out", "in") for s in range(servers)]
    names += [f"r{r}-p{p}-{way}" for way in ("up", "down") for r in range(RACKS) for p in range(PLANES)]
    for way in ("up", "down"):
        names += [f"pod{n}-p{p}-c{c}-{way}" for n in range(PODS) for p in range(PLANES) for c in range(2)]

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        here, there = src // SERVERS, dst // SERVERS
        plane, which = dst % PLANES, dst // PLANES % 2
        apart = here != there
        far = here // 2 != there // 2
        pods = RACKS // PODS
        hops = [
            src,
            np.where(apart, up + here * PLANES + plane, -1),
            np.where(far, core_up + (here // pods * PLANES + plane) * 2 + which, -1),
            np.where(far, core_down + (there // pods * PLANES + plane) * 2 + which, -1),
            np.where(apart, down + there * PLANES + plane, -1),
            servers + dst,
        ]
        # Unused hops go to the end.
        routes = np.stack(hops, axis=1)
        order = np.argsort(routes < 0, axis=1, kind="stable")
        return np.take_along_axis(routes, order, axis=1).astype(np.int32)

    return Topology("cassini-testbed", servers, np.full(len(names), LINK), tuple(names), route)


def cluster(gpus_per_server: int = 1) -> Cluster:
    """Return the testbed's servers."""
    return Cluster(leaves=RACKS, spines=PLANES, servers_per_leaf=SERVERS, gpus_per_server=gpus_per_server)


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a job puts on links, shape (L,): how many of its flows cross each, and `weight`, their rate over
    the rate of a GPU."""

    flows: Floats
    weight: Floats


def traffic(topology: Topology, per_server: int, pattern: Pattern, gpus: GPUs) -> Traffic:
    """Return the traffic of a job on these GPUs: a ring in their order, or all-to-all."""
    ranks = np.array(gpus, np.int64)
    count = len(ranks)
    if pattern == "ring":
        src, dst = ranks, np.roll(ranks, -1)
    else:
        src, dst = np.repeat(ranks, count), np.tile(ranks, count)
    src, dst = src // per_server, dst // per_server
    apart = src != dst
    src, dst = src[apart], dst[apart]
    flows = np.zeros(len(topology.capacity))
    if len(src):
        routes = topology.routes(src, dst, np.zeros(len(src), np.int64))
        np.add.at(flows, routes[routes >= 0], 1.0)
    return Traffic(flows, flows if pattern == "ring" else flows / (count - 1))
