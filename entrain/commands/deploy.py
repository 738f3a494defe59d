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
    help="Another program: p4c's output for the target; for tofino, the .conf that names it all. "
    "`fabric` is entrain's own.",
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
        result = _deploy_directly(topology, routing, given_pipeline(topology, program, p4info))
    else:
        result = _deploy_to_network(target, network, routing or "", program, p4info)
    if as_json:
        click.echo(json.dumps(result))
    else:
        print_whole(deploy_table(result))
        if not result["fabric"] and result["tables"]:
            click.echo(
                f"{result['program']} is not the fabric's program: entrain writes no entries into its "
                f"tables; `entrain shell {result['switches'][0]['name']} --write` does"
            )


def given_pipeline(topology: Topology, program: Path | None, p4info: Path | None) -> Pipeline:
    """Return what --program and --p4info name, or else the fabric's program for the target of `topology`.

    Raises BadInput, also if its switches have several targets of which one is a Tofino: all switches get the
    same configuration.
    """
    from controlplane.network import TOFINOS
    from controlplane.pipeline import FABRIC, Pipeline, given_files

    targets = sorted({switch.target for switch in topology.switches})
    files = given_files(program, p4info, targets[0])
    if files is not None and program != FABRIC:
        return Pipeline.load(files[1], files[0])
    if len(targets) > 1 and not {*targets}.isdisjoint(TOFINOS):
        raise BadInput(
            f"{topology.name}: its switches have targets {', '.join(targets)}, whose configurations differ; "
            f"deploy each target with a topology file of its own"
        )
    return Pipeline.of_target(targets[0])


def _deploy_directly(topology: Topology, routing: str | None, pipeline: Pipeline) -> dict[str, Any]:
    from controlplane.controller import apply_routing, check_routes
    from controlplane.fabric import Applied, Fabric
    from controlplane.routing import FabricPolicy

    async def deploy() -> list[Applied]:
        async with Fabric(topology, pipeline) as fabric:
            return await apply_routing(fabric, FabricPolicy(routing=routing or "ecmp"))  # type: ignore[arg-type]

    check_routes(routing or "", pipeline)
    began = time.monotonic()
    applied = asyncio.run(deploy())
    took = time.monotonic() - began
    tables = [table.name for table in pipeline.schema.tables]
    return _document(topology.name, applied, took, pipeline.name, tables, is_fabric=pipeline.is_fabric)


def _deploy_to_network(
    target: str, network: str | None, routing: str, program: Path | None, p4info: Path | None
) -> dict[str, Any]:
    from controlplane.api_pb2 import DeployRequest, GetNetworkRequest
    from controlplane.client import call, choose
    from controlplane.pipeline import given_files

    files = given_files(program, p4info, target)  # type: ignore[arg-type]
    chosen = choose(network)
    with call(chosen) as stub:
        running = {switch.target for switch in stub.GetNetwork(GetNetworkRequest()).switches}
        if running != {target}:
            raise BadInput(
                f"--target {target}: network {chosen.name} runs {', '.join(sorted(running))}; "
                f"take it down and bring it up with --target {target}"
            )
        paths = {} if files is None else {"program": str(files[0]), "p4info": str(files[1])}
        reply = stub.Deploy(DeployRequest(routing=routing, **paths))
        now = stub.GetNetwork(GetNetworkRequest())
    tables = [*now.switches[0].tables]
    return _document(chosen.name, reply.switches, reply.seconds, now.program, tables, is_fabric=now.fabric)


def _document(
    network: str, switches: Any, seconds: float, program: str, tables: list[str], *, is_fabric: bool
) -> dict[str, Any]:
    return {
        "network": network,
        "program": program,
        "tables": tables,
        "fabric": is_fabric,
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
