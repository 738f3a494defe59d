"""`entrain counter SWITCH NAME`: read a counter or a register of a switch."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console


@click.command(short_help="Show a counter or a register of a switch.")
@click.argument("switch")
@click.argument("name")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--all", "every", is_flag=True, help="Show cells that are zero, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(switch: str, name: str, network: str | None, every: bool, as_json: bool) -> None:
    """Show the cells of the counter or register NAME of SWITCH that are not zero.

    NAME is that of the P4 program, such as port_out. It may be of a program of your own.
    """
    from entrain.commands.shell import find
    from entrain.counters import cells_in
    from machine import tls
    from machine.terminal import plain_table
    from mininet_topos.isolation import NETNS

    address, device_id, namespace, certificates = find(switch, network)
    identity = tls.identity_of(certificates, tls.OPERATORS) if certificates else None
    place = NETNS / namespace if namespace else None
    found = cells_in(place, address, device_id, name, identity)
    cells = [each for each in found if every or not each.is_zero]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in cells]))
        return
    table = plain_table("index", "packets", "bytes", "value", text=0)
    for each in cells:
        table.add_row(str(each.index), str(each.packets), str(each.bytes), str(each.value))
    Console().print(table if cells else f"{name}: all cells of {switch} are zero", highlight=False)
