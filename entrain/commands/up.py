"""`entrain up FILE.toml`: bring up a network with its controller, and leave it running."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from machine.errors import BadInput, EntrainError
from machine.packages import run_module

if TYPE_CHECKING:
    from controlplane.topology import Topology


@click.command()
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.option("--target", type=click.Choice(["softswitch", "bmv2"]), help="Use this target for all switches.")
@click.option(
    "--routing",
    type=click.Choice(["ecmp", "source"]),
    help="How the switches route: ecmp if not given, or as the strategy of [cluster] does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, target: str | None, routing: str | None, as_json: bool) -> None:
    """Bring up the network of a topology or an experiment. `entrain down` takes it down.

    With a [cluster] table it admits jobs: see `entrain submit`, and docs/vclos.md.
    """
    from controlplane.client import call, running_networks
    from controlplane.routing import check_source_routing
    from entrain.experiment import load_network
    from entrain.live_cluster import load_setup
    from machine.record import clean_stale

    topology = load_network(file)
    if target is not None:
        topology = topology.with_target(target)  # type: ignore[arg-type]
    setup = load_setup(file, topology)
    if setup is not None:
        if routing is not None:
            raise BadInput("--routing: not with a [cluster], whose strategy routes; leave it out")
        routing = setup.strategy.routing
    routing = routing or "ecmp"
    console = Console(stderr=True)
    if routing == "source":
        try:
            check_source_routing(topology)
        except BadInput as error:
            console.print(f"note: source routing {error}", highlight=False)
    if os.geteuid() != 0:
        raise EntrainError("up creates namespaces and interfaces; run as root")
    if stale := clean_stale():
        console.print(f"removed {len(stale)} resources left by a crashed run", highlight=False)
    for network in running_networks():
        if network.name == topology.name:
            with call(network) as stub:
                _check_same(stub, topology, network.name)
            result: dict[str, Any] = {"network": topology.name, "already_up": True}
            click.echo(json.dumps(result) if as_json else f"network {topology.name} is already up")
            return
    with console.status(f"bringing up {topology.name}"):
        ready = _start(file, target, routing)
    if as_json:
        click.echo(json.dumps({"network": topology.name, "already_up": False, **ready}))
    else:
        click.echo(
            f"network {topology.name} is up: {len(topology.switches)} switches, {len(topology.hosts)} hosts, "
            f"{routing} routing, {ready['seconds']:.1f} s (process {ready['process_id']})"
        )
        if setup is not None:
            click.echo(
                f"jobs: strategy {setup.strategy.name}, queue {setup.order}, {setup.cluster.gpus} GPUs; "
                f"`entrain submit JOB.toml`"
            )
        click.echo(_next_steps(topology, ready["namespace"]))


def _next_steps(topology: Topology, namespace: str) -> str:
    first, last = topology.switches[0], topology.switches[-1]
    ports = f"{first.grpc_address} ({first.name})"
    if last is not first:
        ports += f" to {last.grpc_address} ({last.name})"
    commands = ["entrain hosts", "entrain loads", "entrain down"]
    if len(topology.hosts) > 1:
        host, other = topology.hosts[0], topology.hosts[-1]
        commands.insert(1, f"entrain exec {host.name} ping -c 1 {other.ip}")
    return f"P4Runtime: {ports}, in the network namespace {namespace}\nnext: {'; '.join(commands)}"


def _check_same(stub: Any, topology: Any, name: str) -> None:
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.controller import topology_hash

    running = stub.GetNetwork(GetNetworkRequest())
    if running.topology_hash != topology_hash(topology):
        raise EntrainError(
            f"another network called {name} is up (process {running.process_id}); "
            f"take it down first: `entrain down`"
        )


def _start(file: Path, target: str | None, routing: str) -> dict[str, Any]:
    """Start the daemon, and wait for its report. Raises EntrainError or BadInput if it failed."""
    read, write = os.pipe()
    command = [*run_module("entrain.run.daemon"), str(file), target or "-", routing, str(write)]
    with open(read) as answer:  # noqa: PTH123 (a descriptor)
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
