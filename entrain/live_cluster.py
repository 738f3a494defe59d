"""The `[cluster]` table of a topology file, with which a controller admits jobs into the network.

    [cluster]
    gpus_per_server = 4
    strategy = "vclos"

docs/vclos.md describes each key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from controlplane.cluster import ClusterSetup, cluster_of
from controlplane.optics import Optics
from controlplane.routing import Routing
from controlplane.topology import Topology
from entrain.experiment import load_experiment
from machine.errors import BadInput
from machine.toml import Strict, check, one_of, read_toml
from ocs.audit import AuditLog
from ocs.drivers import remote_driver
from ocs.emulated import Panel
from ocs.manager import CircuitManager
from schedulers.placement.queue import ORDERS
from schedulers.placement.strategies import STRATEGIES
from workloads.collectives import collectives

CIRCUITS = "circuits.jsonl"
"""Name of the circuits' audit log in a controller's directory."""


def live() -> list[str]:
    """Return the strategies that a network can run; the others are for `entrain place` and the simulator."""
    return [name for name, strategy in STRATEGIES.items() if strategy.routing in get_args(Routing)]


class NetworkClusterTable(Strict):
    """The `[cluster]` table of a topology file, whose hosts are the GPUs."""

    gpus_per_server: Annotated[int, Field(ge=1)]
    strategy: Annotated[str, one_of(live)] = "vclos"
    queue: Annotated[str, one_of(lambda: ORDERS)] = "fifo"
    backfill: bool = False
    locality: bool | None = None


class _File(Strict):
    cluster: NetworkClusterTable


def load_setup(path: Path, topology: Topology) -> ClusterSetup | None:
    """Return how the network in the TOML file `path` is used as a cluster; None without `[cluster]`.

    An experiment's is used with the first of its strategies. Raises BadInput, naming file, key and remedy.
    """
    tables = read_toml(path)
    if "cluster" not in tables:
        return None
    if "experiment" in tables:
        plan = load_experiment(path).cluster
        assert plan is not None, "an experiment with [cluster] has a plan"
        given = plan.table
        table = NetworkClusterTable(
            gpus_per_server=given.gpus_per_server,
            strategy=given.strategy[0],
            queue=given.queue,
            backfill=given.backfill,
        )
    else:
        table = check(_File, {"cluster": tables["cluster"]}, str(path)).cluster
    strategy = STRATEGIES[table.strategy]
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
    return ClusterSetup(cluster, strategy, table.queue, table.backfill, tuple(collectives()))


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
