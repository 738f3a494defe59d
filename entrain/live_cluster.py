"""The `[cluster]` table of a topology file, with which a controller admits jobs into the network.

    [cluster]
    gpus_per_server = 4
    strategy = "vclos"

docs/placement.md describes each key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from controlplane.admission import JOBS_PER_SUBMITTER
from controlplane.cluster import ClusterSetup, cluster_of, hosts_by_gpu
from controlplane.optics import Optics
from controlplane.topology import Topology
from entrain.experiment import load_experiment
from entrain.placing import LiveStrategy
from machine.errors import BadInput
from machine.toml import Strict, check, one_of, read_toml
from mininet_topos.servers import Servers
from ocs.audit import AuditLog
from ocs.drivers import remote_driver
from ocs.emulated import Panel
from ocs.manager import CircuitManager
from schedulers.placement.queue import ORDERS
from workloads.collectives import collectives
from workloads.strategies import strategies

CIRCUITS = "circuits.jsonl"
"""Name of the circuits' audit log in a controller's directory."""


class NetworkClusterTable(Strict):
    """The `[cluster]` table of a topology file, whose hosts are the GPUs."""

    gpus_per_server: Annotated[int, Field(ge=1)]
    strategy: LiveStrategy = "vclos"
    queue: Annotated[str, one_of(lambda: ORDERS)] = "fifo"
    backfill: bool = False
    locality: bool | None = None
    server_rate_mbps: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] | None = None
    """Of the link between two GPUs of a server in an emulated network; without it there is none."""
    gpus_per_submitter: Annotated[int, Field(ge=1)] | None = None
    jobs_per_submitter: Annotated[int, Field(ge=1)] = JOBS_PER_SUBMITTER


class _File(Strict):
    cluster: NetworkClusterTable


def load_setup(path: Path, topology: Topology) -> ClusterSetup | None:
    """Return how the network in the TOML file `path` is used as a cluster; None without `[cluster]`.

    An experiment's is used with the first of its strategies. Raises BadInput, naming file, key and remedy.
    """
    table = _table(path)
    if table is None:
        return None
    strategy = strategies()[table.strategy]
    if table.locality is not None:
        strategy = replace(strategy, locality=table.locality)
    if strategy.ocs and topology.ocs is None:
        raise BadInput(
            f"{path}: [cluster], strategy: {strategy.name} makes circuits, and the topology has no optical "
            f"circuit switch; add [ocs], or choose vclos"
        )
    try:
        cluster = cluster_of(topology, table.gpus_per_server, ocs=strategy.ocs)
    except ValueError as error:
        raise BadInput(f"{path}: [cluster], {error}") from None
    return ClusterSetup(
        cluster,
        strategy,
        table.queue,
        table.backfill,
        tuple(collectives()),
        table.gpus_per_submitter,
        table.jobs_per_submitter,
    )


def servers_of(path: Path, topology: Topology) -> Servers:
    """Return the servers whose hosts have links to each other in an emulated network. Raises BadInput."""
    table = _table(path)
    if table is None or table.server_rate_mbps is None:
        return Servers()
    hosts, size = hosts_by_gpu(topology), table.gpus_per_server
    return Servers(
        tuple(hosts[first : first + size] for first in range(0, len(hosts), size)), table.server_rate_mbps
    )


def _table(path: Path) -> NetworkClusterTable | None:
    tables = read_toml(path)
    if "cluster" not in tables:
        return None
    if "experiment" not in tables:
        return check(_File, {"cluster": tables["cluster"]}, str(path)).cluster
    plan = load_experiment(path).cluster
    assert plan is not None, "an experiment with [cluster] has a plan"
    given = plan.table
    return NetworkClusterTable(
        gpus_per_server=given.gpus_per_server,
        strategy=given.strategy[0],
        queue=given.queue,
        backfill=given.backfill,
        server_rate_mbps=plan.servers.rate_mbps,
    )


def circuits_of(
    topology: Topology, setup: ClusterSetup | None, panel: Panel | None, log: Path
) -> Optics | None:
    """Return the circuits of a cluster whose strategy makes some, over an emulated switch or a remote one.

    What becomes of them is written to the audit log `log`. Raises BadInput if the switch cannot be reached
    as the file says.
    """
    if setup is None or not setup.strategy.ocs or topology.ocs is None:
        return None
    driver = panel if panel is not None else remote_driver(topology.ocs.settings, topology.ocs.ports)
    manager = CircuitManager(
        topology.ocs.crossbar, driver, AuditLog(log), attempts=topology.ocs.settings.attempts
    )
    try:
        return Optics(manager, topology, setup.cluster)
    except ValueError as error:
        raise BadInput(f"{topology.name}: {error}") from None
