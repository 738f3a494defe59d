"""`entrain deploy`: set pipeline and tables on running switches."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from machine.errors import BadInput, EntrainError
from machine.terminal import count, plain_table, print_whole

if TYPE_CHECKING:
    from controlplane.pipeline import Pipeline
    from controlplane.topology import Topology


@click.command(short_help="Set the pipeline and the tables of every switch.")
@click.option("--target", required=True, type=click.Choice(["softswitch", "bmv2", "tofino", "tofino2"]))
@click.option(
    "--topology",
    "file",
    type=click.Path(path_type=Path),
    help="Topology file with the switches' gRPC addresses.",
)
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--routing", type=click.Choice(["ecmp", "source"]), help="Default: unchanged, or ecmp.")
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    help="Another program: p4c's output for the target; for tofino, the .conf that names it all.",
)
@click.option("--p4info", type=click.Path(path_type=Path), help="Its P4Info.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    target: str,
    file: Path | None,
    network: str | None,
    routing: str | None,
    program: Path | None,
    p4info: Path | None,
    as_json: bool,
) -> None:
    """Set the pipeline and the tables of every switch, and report how long it took.

    The switches are those of a running network, or those of a topology file with their addresses.
    """
    if file is None and target.startswith("tofino"):
        raise EntrainError(
            f"target {target} needs a switch that runs Stratum. Describe it in a topology file ([[switch]] "
            f'with target = "{target}", grpc_host and grpc_port), and give --topology'
        )
    if file is not None and network is not None:
        raise BadInput("--topology and --network: give only one of the two")
    if file is not None:
        from entrain.experiment import load_network

        topology = load_network(file).with_target(target)  # type: ignore[arg-type]
        result = _deploy_directly(topology, routing or "ecmp", given_pipeline(topology, program, p4info))
    else:
        _check_pair(program, p4info)
        result = _deploy_to_network(target, network, routing or "", program, p4info)
    if as_json:
        click.echo(json.dumps(result))
    else:
        print_whole(deploy_table(result))


def given_pipeline(topology: Topology, program: Path | None, p4info: Path | None) -> Pipeline:
    """Return what --program and --p4info name, or else the fabric's program for the target of `topology`.

    Raises BadInput, also if its switches have several targets of which one is a Tofino: all switches get the
    same configuration.
    """
    from controlplane.network import TOFINOS
    from controlplane.pipeline import Pipeline

    _check_pair(program, p4info)
    if program is not None and p4info is not None:
        return Pipeline.load(p4info, program)
    targets = sorted({switch.target for switch in topology.switches})
    if len(targets) > 1 and not {*targets}.isdisjoint(TOFINOS):
        raise BadInput(
            f"{topology.name}: its switches have targets {', '.join(targets)}, whose configurations differ; "
            f"deploy each target with a topology file of its own"
        )
    return Pipeline.of_target(targets[0])


def _check_pair(program: Path | None, p4info: Path | None) -> None:
    if (program is None) != (p4info is None):
        raise BadInput("--program and --p4info: give both or neither; they come from the same compilation")


def _deploy_directly(topology: Topology, routing: str, pipeline: Pipeline) -> dict[str, Any]:
    from controlplane.controller import apply_routing
    from controlplane.fabric import Applied, Fabric
    from controlplane.routing import FabricPolicy

    async def deploy() -> list[Applied]:
        async with Fabric(topology, pipeline) as fabric:
            return await apply_routing(fabric, FabricPolicy(routing=routing))  # type: ignore[arg-type]

    began = time.monotonic()
    applied = asyncio.run(deploy())
    return _document(topology.name, applied, time.monotonic() - began)


def _deploy_to_network(
    target: str, network: str | None, routing: str, program: Path | None, p4info: Path | None
) -> dict[str, Any]:
    from controlplane.api_pb2 import DeployRequest, GetNetworkRequest
    from controlplane.client import call, choose

    chosen = choose(network)
    with call(chosen) as stub:
        running = {switch.target for switch in stub.GetNetwork(GetNetworkRequest()).switches}
        if running != {target}:
            raise BadInput(
                f"--target {target}: network {chosen.name} runs {', '.join(sorted(running))}; "
                f"take it down and bring it up with --target {target}"
            )
        paths = (
            {"program": str(program.resolve()), "p4info": str(p4info.resolve())} if program and p4info else {}
        )
        reply = stub.Deploy(DeployRequest(routing=routing, **paths))
    return _document(chosen.name, reply.switches, reply.seconds)


def _document(network: str, switches: Any, seconds: float) -> dict[str, Any]:
    return {
        "network": network,
        "seconds": seconds,
        "switches": [
            {
                "name": getattr(switch, "name", None) or switch.switch,
                "pipeline_set": switch.pipeline_set,
                "inserted": switch.inserted,
                "modified": switch.modified,
                "deleted": switch.deleted,
                "seconds": switch.seconds,
            }
            for switch in switches
        ],
    }


def deploy_table(result: dict[str, Any]) -> Table:
    """Return a table with one row per switch: what was written, and how long it took."""
    table = plain_table("switch", "pipeline", "inserted", "modified", "deleted", "seconds", text=2)
    for switch in result["switches"]:
        counts = [str(switch[key]) for key in ("inserted", "modified", "deleted")]
        pipeline = "set" if switch["pipeline_set"] else "unchanged"
        table.add_row(switch["name"], pipeline, *counts, f"{switch['seconds']:.2f}")
    switches = count(len(result["switches"]), "switch", "switches")
    written = any(
        switch["pipeline_set"] or switch["inserted"] or switch["modified"] or switch["deleted"]
        for switch in result["switches"]
    )
    done = "ready" if written else "had all of this already: nothing written,"
    table.caption = f"{result['network']}: {switches} {done} in {result['seconds']:.2f} s"
    return table
