"""A leaf-spine network as a cluster of GPUs: what a topology calls the parts of `schedulers.placement`.

The hosts of a leaf, by port, are its GPUs in order. Leaf n and spine m of a cluster are the n-th leaf and the
m-th spine of the topology, and so are their ports that lead to no host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.admission import JOBS_PER_SUBMITTER, Failures
from controlplane.fabric import READY
from controlplane.network import Topology
from schedulers.placement.cluster import Cluster, Port
from schedulers.placement.strategies import Strategy


@dataclass(frozen=True)
class ClusterSetup:
    """How a network is used as a cluster: see `controlplane.admission.Admission`.

    `patterns` are the collectives that jobs may name; empty allows any. The jobs of one submitter have at
    most `gpus_per_submitter` GPUs (None: all), and `jobs_per_submitter` of them wait or run.
    """

    cluster: Cluster
    strategy: Strategy
    order: str = "fifo"
    backfill: bool = False
    patterns: tuple[str, ...] = ()
    gpus_per_submitter: int | None = None
    jobs_per_submitter: int = JOBS_PER_SUBMITTER


def cluster_of(topology: Topology, gpus_per_server: int, *, ocs: bool = False) -> Cluster:
    """Return the topology as a cluster with a GPU behind each host.

    Raises ValueError (key, problem and remedy) unless it has equal leaves and as many links between each leaf
    and spine, in the order in which `Cluster` numbers them.
    """
    leaves, spines = topology.switches_of("leaf"), topology.switches_of("spine")
    if not topology.is_leaf_spine or not spines:
        raise ValueError(
            f"{topology.name}: is not a leaf-spine network, which a cluster is; give it leaves and spines"
        )
    sizes = {leaf.name: len(topology.hosts_of(leaf.name)) for leaf in leaves}
    size = sizes[leaves[0].name]
    if other := next((leaf for leaf, hosts in sizes.items() if hosts != size), None):
        raise ValueError(
            f"{topology.name}: {leaves[0].name} has {size} hosts and {other} {sizes[other]}; "
            f"give each leaf of a cluster as many"
        )
    if size % gpus_per_server:
        raise ValueError(
            f"gpus_per_server: {size} hosts of a leaf cannot be divided into servers of {gpus_per_server} "
            f"GPUs; choose a divisor of {size}"
        )
    links, rest = divmod(len(topology.fabric_ports_of(leaves[0].name)), len(spines))
    cluster = Cluster(len(leaves), len(spines), size // gpus_per_server, gpus_per_server, max(links, 1), ocs)
    for n, leaf in enumerate(leaves):
        for p, port in enumerate(topology.fabric_ports_of(leaf.name)):
            m, k = divmod(p, cluster.links_per_pair)
            spine = spines[m] if m < len(spines) else None
            far = topology.fabric_ports_of(spine.name) if spine else ()
            q = n * cluster.links_per_pair + k
            if spine is None or port.peer != spine.name or far[q : q + 1] != (spine.port(port.peer_port),):
                raise ValueError(
                    f"{topology.name}: port {port.number} of {leaf.name} leads to {port.peer}; in a cluster "
                    f"each leaf has as many links to each spine, in the order of the spines, and these in "
                    f"the order of the leaves"
                )
        uplinks = len(topology.fabric_ports_of(leaf.name))
        if rest or uplinks != cluster.uplinks:
            raise ValueError(
                f"{topology.name}: {leaf.name} has {uplinks} uplinks; give each leaf as many to each of the "
                f"{len(spines)} spines"
            )
    return cluster


def hosts_by_gpu(topology: Topology) -> tuple[str, ...]:
    """Return the name of each GPU's host."""
    return tuple(host.name for leaf in topology.switches_of("leaf") for host in topology.hosts_of(leaf.name))


def switch_port(topology: Topology, port: Port) -> tuple[str, int]:
    """Return the switch of a cluster's port by name, and the port's number there."""
    switch = topology.switches_of(port.kind)[port.switch]
    return switch.name, topology.fabric_ports_of(switch.name)[port.port].number


def port_name(topology: Topology, port: Port) -> str:
    """Return what a cluster's port is called in the topology, such as `leaf1-eth5`."""
    name, number = switch_port(topology, port)
    return topology.switch_by_name[name].interface(number)


def failures(topology: Topology, statuses: Mapping[str, str]) -> Failures:
    """Return what is lost with the switches that are not ready, by their `statuses` (`Fabric.statuses`).

    With a leaf its GPUs and uplinks are, with a spine its ports.
    """
    gpus: dict[int, str] = {}
    ports: dict[Port, str] = {}
    hosts = hosts_by_gpu(topology)
    for kind in ("leaf", "spine"):
        for number, switch in enumerate(topology.switches_of(kind)):
            status = statuses.get(switch.name, READY)
            if status == READY:
                continue
            own = {host.name for host in topology.hosts_of(switch.name)}
            gpus |= {gpu: status for gpu, host in enumerate(hosts) if host in own}
            count = len(topology.fabric_ports_of(switch.name))
            ports |= {Port(kind, number, port): status for port in range(count)}
    return Failures(gpus, ports)
