"""`entrain ocs FILE.toml`: read the optical circuit switch of a topology."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

if TYPE_CHECKING:
    from controlplane.network import Ocs
    from ocs.manager import CircuitManager, CircuitStatus


@click.command(short_help="Ask an optical circuit switch for its circuits.")
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, as_json: bool) -> None:
    """Ask an optical circuit switch for its circuits and failed ports. This changes nothing.

    FILE.toml is a topology or an experiment with an [ocs] table, whose driver is tl1 or scpi. What it does
    not plug in is not shown.
    """
    from entrain.experiment import load_network
    from machine.errors import BadInput
    from machine.terminal import plain_table
    from ocs.drivers import remote_driver
    from ocs.manager import CircuitManager

    ocs = load_network(file).ocs
    if ocs is None:
        raise BadInput(f"{file}: has no [ocs]; docs/placement.md describes it")
    try:
        driver = remote_driver(ocs.settings, ocs.ports)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    manager = CircuitManager(ocs.crossbar, driver, attempts=ocs.settings.attempts)
    found = asyncio.run(_read(manager))
    if as_json:
        circuits = [
            {
                "ports": list(each.circuit.ports),
                "ends": [_end(ocs, port) for port in each.circuit.ports],
                "loss_db": each.loss_db,
            }
            for each in found
        ]
        failed = [{"port": port, "end": _end(ocs, port)} for port in manager.failed]
        click.echo(json.dumps({"address": ocs.settings.address, "circuits": circuits, "failed": failed}))
        return
    table = plain_table("circuit", "from", "to", "loss\ndB", text=3)
    for each in found:
        ends = (_end(ocs, port) for port in each.circuit.ports)
        table.add_row(str(each.circuit), *ends, f"{each.loss_db:g}")
    console = Console()
    if found:
        console.print(table)
    console.print(f"{len(found)} circuits, {len(manager.failed)} failed ports", highlight=False)
    for port in manager.failed:
        console.print(f"failed: port {port} ({_end(ocs, port)})", highlight=False)


async def _read(manager: CircuitManager) -> list[CircuitStatus]:
    try:
        return await manager.status()
    finally:
        await manager.close()


def _end(ocs: Ocs, port: int) -> str:
    """What is plugged in at a port, such as `leaf1-eth5`; `-` for nothing."""
    plug = ocs.plug_by_port.get(port)
    return f"{plug.switch}-eth{plug.port}" if plug is not None else "-"
