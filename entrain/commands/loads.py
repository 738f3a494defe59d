"""`entrain loads`: show the link load tables of a running network."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from machine.terminal import plain_table
from wire.slot_header import slot_near


@click.command()
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval-ms",
    type=click.IntRange(min=20),
    default=500,
    show_default=True,
    help="With --watch: time between readings.",
)
@click.option("--slot-ms", type=float, default=60.0, show_default=True, help="Length of a slot.")
@click.option("--all", "every", is_flag=True, help="Show past slots and ports without load, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per reading.")
def command(
    network: str | None, watch: bool, interval_ms: int, slot_ms: float, every: bool, as_json: bool
) -> None:
    """Show the planned load of each link per slot, from the switches' registers.

    Slots are numbered relative to the current slot, which is `+0`.
    """
    from controlplane.api_pb2 import WatchLoadsRequest
    from controlplane.client import call, choose
    from hostbpf.clock import SlotClock

    clock = SlotClock.shared(slot_ms)
    with call(choose(network)) as stub:
        readings = stub.WatchLoads(WatchLoadsRequest(interval_ms=interval_ms if watch else 0))
        if as_json:
            for reading in readings:
                click.echo(json.dumps(_document(reading, clock.slot())))
        elif not watch:
            for reading in readings:
                Console().print(loads_table(reading, clock.slot(), every))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                for reading in readings:
                    live.update(loads_table(reading, clock.slot(), every), refresh=True)


def _document(reading: Any, present: int) -> dict[str, Any]:
    return {
        "unix_ns": reading.unix_ns,
        "present_slot": present,
        **({"problem": reading.problem} if reading.problem else {}),
        "ports": [
            {
                "switch": port.switch,
                "port": port.port,
                "peer": port.peer,
                "capacity_mbps": port.capacity_mbps,
                "slots": {str(number): load for number, load in _slots(port, present)},
            }
            for port in reading.ports
        ],
    }


def _slots(port: Any, present: int) -> list[tuple[int, float]]:
    """Return slots and their loads in order. The switches know slot numbers modulo a large number only."""
    return sorted((slot_near(present, each.slot), each.load_mbps) for each in port.slots)


def loads_table(reading: Any, present: int, every: bool) -> Table:
    """Return a table with one row per port: its planned load by slot, relative to slot `present`.

    With `every`, it includes past slots and ports without load.
    """
    table = plain_table("switch", "port", "to", "capacity\nMbit/s", text=3)
    table.add_column("planned Mbit/s by slot", overflow="fold")
    for port in reading.ports:
        slots = [(at, load) for at, load in _slots(port, present) if every or (load and at >= present)]
        if slots or every:
            text = "  ".join(f"{at - present:+d}:{load:g}" for at, load in slots)
            table.add_row(port.switch, str(port.port), port.peer, f"{port.capacity_mbps:g}", text or "-")
    if reading.problem:
        table.caption = reading.problem
    elif not table.rows:
        table.caption = f"nothing is planned on any of {len(reading.ports)} ports"
    return table
