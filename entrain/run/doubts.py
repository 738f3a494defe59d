"""What of a file's network is likely not meant as it stands there, told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controlplane.topology import Topology
from controlplane.unpaired import QUEUE, RATE, unpaired, without_queue, without_rate
from entrain.cluster import ClusterPlan, LiveClusterTable
from entrain.experiment import NetworkTable, topology_tables
from mininet_topos.links import lengthened, without_relay


def doubts(
    path: Path, topology: Topology, options: NetworkTable, cluster: ClusterPlan | None
) -> tuple[str, ...]:
    """Return a line for each doubt about the network of the TOML file `path`, with the file and the key.

    `topology`, `options` and `cluster` are what it has. Raises BadInput.
    """
    return tuple(_doubts(path, topology, options, cluster))


def _doubts(
    path: Path, topology: Topology, options: NetworkTable, cluster: ClusterPlan | None
) -> Iterator[str]:
    described, tables = topology_tables(path)
    if cluster is not None:
        for line in _unpaired(cluster.table):
            yield f"{path}: {line}"
    else:
        for line in unpaired(tables, str(described)):
            yield f"{described}: {line}"
    plugs, plugged = (topology.ocs.plugs, topology.ocs.port_of) if topology.ocs is not None else ((), {})
    links = [without_relay(topology, link) for link in topology.links if (link.a, link.a_port) not in plugged]
    for line in lengthened([*links, *plugs], options.shaping):
        yield f"{described}: {line}"
    if (packets := options.host_queue_packets) is not None:
        if options.shaping == "none":
            yield (
                f'{path}: [network], host_queue_packets: has no effect with shaping = "none", which gives '
                f'links neither rate nor queue; take "htb" or "tbf", or remove the key'
            )
        own = [
            replace(link, queue_packets=packets)
            for link in links
            if {link.a, link.b} & topology.host_by_name.keys()
        ]
        for line in lengthened(own, options.shaping, "host_queue_packets"):
            yield f"{path}: [network]: {line}"


def _unpaired(table: LiveClusterTable) -> Iterator[str]:
    given = table.model_fields_set
    if RATE in given and QUEUE not in given:
        yield without_queue("[cluster]", [RATE], table.queue_packets)
    elif QUEUE in given and RATE not in given:
        yield without_rate("[cluster]", RATE, table.rate_mbps)
