"""`entrain drops`: what the switches of a running network have dropped, and why."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from machine.terminal import plain_table, print_whole


@click.command(short_help="Show what the switches dropped, and why.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(network: str | None, as_json: bool) -> None:
    """Show how many packets each switch has dropped by a rule of the network, since its program was set.

    Packets that a full queue has lost are not among them.
    """
    from controlplane.api_pb2 import ListDropsRequest
    from controlplane.client import RUNS, call, choose

    with call(choose(network, runs=RUNS)) as stub:
        found = stub.ListDrops(ListDropsRequest())
    if as_json:
        switches = {switch.name: dict(switch.packets) for switch in found.switches}
        click.echo(json.dumps({"switches": switches}))
    elif not any(count for switch in found.switches for count in switch.packets.values()):
        click.echo("no switch has dropped anything")
    else:
        print_whole(drops_table(found))


def drops_table(found: Any) -> Table:
    """Return a table with a row for each switch and reason that has dropped something."""
    table = plain_table("switch", "reason", "packets", text=2)
    for switch in found.switches:
        for reason, packets in switch.packets.items():
            if packets:
                table.add_row(switch.name, reason, str(packets))
    return table
