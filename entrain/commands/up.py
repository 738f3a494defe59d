"""`entrain up FILE.toml`: bring up a network with its controller, and leave it running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

if TYPE_CHECKING:
    from controlplane.topology import Topology


@click.command(short_help="Bring up the network of a file.")
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

    All keys of the experiment's [network] apply, but for gap_ms, which says how a run is measured.
    With a [cluster] table it admits jobs: see `entrain submit`, and docs/vclos.md.
    """
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose
    from entrain.doctor import check_network
    from entrain.run.emulation import features
    from entrain.run.starting import prepared, start
    from machine.signals import ending_once
    from machine.terminal import warn

    console = Console(stderr=True)
    plan = prepared(file, target, routing)
    for note in plan.notes:
        console.print(f"note: {note}", highlight=False)
    for warning in plan.warnings:
        warn(console, warning)
    topology, setup, routing = plan.topology, plan.setup, plan.routing
    with ending_once():
        check_network(features(topology, plan.options), plan.options.shaping)
    with console.status(f"bringing up {topology.name}"):
        ready = start(plan)
    if ready is None:
        with call(choose(topology.name)) as stub:
            running = stub.GetNetwork(GetNetworkRequest())
        result: dict[str, Any] = {"network": topology.name, "already_up": True, "program": running.program}
        other = "" if running.fabric else f", and its switches run {running.program}"
        click.echo(json.dumps(result) if as_json else f"network {topology.name} is already up{other}")
        return
    if removed := ready.pop("removed"):
        console.print(f"removed {removed} resources left by a crashed run", highlight=False)
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
