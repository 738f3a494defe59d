"""`entrain circuits`: the circuits of a cluster's optical circuit switch."""

from __future__ import annotations

import json

import click
from rich.console import Console


@click.command(short_help="List the optical circuits and their jobs.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(network: str | None, as_json: bool) -> None:
    """List the circuits, the job that holds each, and the ports that no job gets because they have failed."""
    from controlplane.api_pb2 import ListCircuitsRequest
    from controlplane.client import call, choose
    from entrain.jobs import document
    from machine.terminal import plain_table

    with call(choose(network)) as stub:
        found = stub.ListCircuits(ListCircuitsRequest())
    if as_json:
        click.echo(json.dumps(document(found)))
        return
    table = plain_table("port", "to", "job", text=3)
    for each in found.circuits:
        table.add_row(each.circuit.a.name, each.circuit.b.name, each.job or "-")
    console = Console()
    if found.circuits:
        console.print(table)
    held = sum(bool(each.job) for each in found.circuits)
    console.print(f"{len(found.circuits)} circuits, {held} held by jobs", highlight=False)
    for failure in found.failures:
        console.print(f"failed: {failure.what}: {failure.reason}", highlight=False)
