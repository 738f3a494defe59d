"""`entrain counter SWITCH NAME`: read a counter or a register of a switch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from machine.terminal import plain_table, print_whole

if TYPE_CHECKING:
    from entrain.counters import Cell

COUNTS = ("packets", "bytes")


@click.command(short_help="Show a counter or a register of a switch.")
@click.argument("switch")
@click.argument("name")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--all", "every", is_flag=True, help="Show also cells that are zero.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(switch: str, name: str, network: str | None, every: bool, as_json: bool) -> None:
    """Show the cells of the counter or register NAME of SWITCH that are not zero.

    NAME is that of the P4 program that the switch runs, such as port_out. A direct counter has a cell for
    each entry of its table.
    """
    from entrain.commands.shell import find
    from entrain.counters import cells_in
    from mininet_topos.isolation import NETNS

    place = find(switch, network)
    namespace = NETNS / place.namespace if place.namespace else None
    found = cells_in(namespace, place.address, place.device_id, name, place.operator)
    cells = [each for each in found if every or not each.is_zero]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in cells]))
        return
    if not found:  # of a table without entries
        click.echo(f"{name}: counts the packets of table entries, and its table has none")
    elif not cells:
        click.echo(f"{name}: all cells of {switch} are zero")
    else:
        print_whole(_table(cells))


def _table(cells: list[Cell]) -> Table:
    """Return a table of cells of one kind."""
    from entrain.counters import DIRECT

    kind = cells[0].kind
    headings = ("entry" if kind == DIRECT else "index", *(("value",) if kind == "register" else COUNTS))
    table = plain_table(*headings, text=1 if kind == DIRECT else 0)
    for cell in cells:
        counts = (cell.value,) if kind == "register" else (cell.packets, cell.bytes)
        table.add_row(escape(cell.entry) or str(cell.index), *map(str, counts))
    return table
