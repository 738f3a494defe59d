"""Start and stop the process behind a network that is up (`entrain.run.daemon`)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from controlplane.api_pb2 import GetNetworkRequest, ShutdownRequest
from controlplane.client import RunningNetwork, call, running_networks
from controlplane.cluster import ClusterSetup
from controlplane.readings import topology_hash
from controlplane.routing import check_source_routing
from controlplane.topology import Topology
from entrain.experiment import NetworkTable, load_emulated
from entrain.live_cluster import load_setup
from entrain.run.doubts import doubts
from entrain.run.emulation import check_control, check_kept, run_only
from machine.errors import BadInput, EntrainError
from machine.packages import run_module
from machine.patience import patience
from machine.record import clean_stale, running

DOWN_TIMEOUT_S = patience(30.0)
"""How long the controller may take to remove the network."""
POLL_S = 0.05
"""How often its record is checked."""


@dataclass(frozen=True)
class Prepared:
    """A network that can be brought up."""

    file: Path
    target: str | None
    topology: Topology
    options: NetworkTable
    """How it is emulated."""
    setup: ClusterSetup | None
    """What admits jobs; None without a `[cluster]` table."""
    routing: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    """What of the file is not applied, or not as it stands there."""


def prepared(file: Path, target: str | None = None, routing: str | None = None) -> Prepared:
    """Check the topology or experiment in `file`; `target` and `routing` override its own.

    Raises BadInput.
    """
    topology, options, plan = load_emulated(file)
    if target is not None:
        topology = topology.with_target(target)  # type: ignore[arg-type]
    setup = load_setup(file, topology)
    if setup is not None:
        if routing is not None:
            raise BadInput("--routing: not with a [cluster], whose strategy routes; leave it out")
        routing = setup.strategy.routing
    routing = routing or "ecmp"
    check_control(f"{file}: [network]", options.congestion_control)
    notes, warnings = [], list(doubts(file, topology, options, plan))
    if ignored := run_only(options):
        warnings.append(f"{file}: [network], {', '.join(ignored)}: only a run uses this; `up` ignores it")
    if routing == "source":
        try:
            check_source_routing(topology)
        except BadInput as error:
            notes.append(f"source routing {error}")
    return Prepared(file, target, topology, options, setup, routing, tuple(notes), tuple(warnings))


def start(plan: Prepared) -> dict[str, Any] | None:
    """Bring the network up, and leave it running; return None if it is up already.

    Return `seconds`, `process_id`, `namespace`, and the number of resources of crashed runs that were
    `removed`. Raises EntrainError (MissingTool without Mininet, or where this machine cannot emulate the
    network), and BadInput.
    """
    if os.geteuid() != 0:
        raise EntrainError("up creates namespaces and interfaces; run as root")
    import_module("mininet_topos.base")
    from mininet_topos.network import check_possible

    removed = len(clean_stale())
    for network in running_networks():
        if network.name == plan.topology.name:
            with call(network) as stub:
                _check_same(stub, plan.topology, network.name)
            check_kept(plan.options, network.directory, network.name)
            return None
    check_possible(plan.topology, plan.options.shaping)
    return {**_daemon(plan.file, plan.target, plan.routing), "removed": removed}


def stop(network: RunningNetwork) -> None:
    """Take a network down, and wait until its controller has removed everything. Raises EntrainError."""
    with call(network) as stub:
        process_id = stub.Shutdown(ShutdownRequest()).process_id
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while running(f"up-{network.name}"):  # the record is removed last
        if time.monotonic() > deadline:
            raise EntrainError(
                f"network {network.name}: process {process_id} is still taking it down after "
                f"{DOWN_TIMEOUT_S:g} s"
            )
        time.sleep(POLL_S)


def _check_same(stub: Any, topology: Any, name: str) -> None:
    found = stub.GetNetwork(GetNetworkRequest())
    if found.topology_hash != topology_hash(topology):
        raise EntrainError(
            f"another network called {name} is up (process {found.process_id}); "
            f"take it down first: `entrain down`"
        )


def _daemon(file: Path, target: str | None, routing: str) -> dict[str, Any]:
    """Start the daemon, and wait for its report. Raises EntrainError or BadInput if it failed."""
    read, write = os.pipe()
    command = [*run_module("entrain.run.daemon"), str(file), target or "-", routing, str(write)]
    with open(read, encoding="utf-8") as answer:  # noqa: PTH123 (a descriptor)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[write],
                start_new_session=True,
            )
        finally:
            os.close(write)
        try:
            line = answer.readline()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if not line:
        _, stderr = process.communicate()
        raise EntrainError(f"the controller ended without a report:\n{stderr.decode(errors='replace')}")
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        process.wait()
        raise (BadInput if message.get("bad_input") else EntrainError)(message["error"])
    ready: dict[str, Any] = message["ready"]
    return ready
