"""`entrain loads`: show the link load tables of a running network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from machine.terminal import plain_table, print_whole
from wire.slot_header import slot_near

if TYPE_CHECKING:
    from controlplane.queues import Queue
    from entrain.watch.source import Used

SHOWN_MBPS = 0.1
"""A port that sends less is not shown, unless something is planned on it."""


@click.command(short_help="Show what each link carries, and what is planned on it.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval-ms",
    type=click.IntRange(min=20),
    default=500,
    show_default=True,
    help="Time between readings.",
)
@click.option("--slot-ms", type=float, default=60.0, show_default=True, help="Length of a slot.")
@click.option("--all", "every", is_flag=True, help="Show past slots and ports without load, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per reading.")
def command(
    network: str | None, watch: bool, interval_ms: int, slot_ms: float, every: bool, as_json: bool
) -> None:
    """Show the planned load of each link per slot, from the switches' registers, beside what is used.

    Slots are numbered relative to the current slot, which is `+0`. What is used is measured between two
    readings, by the ports' counters. The backlog is what waits in a port's queue at a reading.
    """
    from controlplane.api_pb2 import WatchLoadsRequest
    from controlplane.client import RUNS, call, choose
    from entrain.watch.source import Rates, measured
    from hostbpf.clock import SlotClock

    clock, rates = SlotClock.shared(slot_ms), Rates()
    with call(choose(network, runs=RUNS)) as stub:
        readings: Iterable[tuple[Any, Used]]
        if watch:
            stream = stub.WatchLoads(WatchLoadsRequest(interval_ms=interval_ms, counters=True))
            readings = ((reading, rates.of(reading)) for reading in stream)
        else:
            readings = [measured(stub, interval_ms)]
        if as_json:
            for reading, used in readings:
                click.echo(json.dumps(_document(reading, clock.slot(), used)))
        elif not watch:
            for reading, used in readings:
                table = loads_table(reading, clock.slot(), every, used)
                if table.rows or not reading.lacking:
                    print_whole(table)
                elif any(sent is not None for sent, _ in used.values()):
                    click.echo(f"nothing is sent on any of {len(reading.ports)} ports")
                if reading.lacking:
                    click.echo(reading.lacking)
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                for reading, used in readings:
                    table = loads_table(reading, clock.slot(), every, used)
                    live.update(Group(table, reading.lacking) if reading.lacking else table, refresh=True)


def _queues(reading: Any) -> dict[str, Queue]:
    """Return the queues in front of links, by the links' names."""
    from controlplane.queues import by_link, queue_of

    return {queue.link: queue for queue in by_link(map(queue_of, reading.queues))}


def _told(queue: Queue) -> dict[str, int]:
    return {"backlog_bytes": queue.backlog_bytes, "dropped": queue.dropped_packets}


def _document(reading: Any, present: int, used: Used) -> dict[str, Any]:
    queues = _queues(reading)
    return {
        "unix_ns": reading.unix_ns,
        "present_slot": present,
        **({"problem": reading.problem} if reading.problem else {}),
        **({"lacking": reading.lacking} if reading.lacking else {}),
        "ports": [
            {
                "switch": port.switch,
                "port": port.port,
                "peer": port.peer,
                "capacity_mbps": port.capacity_mbps,
                "measured_mbps": used[port.switch, port.port][0],
                **({"refused": dict(port.refused)} if port.refused else {}),
                **({"queue": _told(queues[port.link])} if port.link in queues else {}),
                "slots": {str(number): load for number, load in _slots(port, present)},
            }
            for port in reading.ports
        ],
    }


def _slots(port: Any, present: int) -> list[tuple[int, float]]:
    """Return slots and their loads in order. The switches know slot numbers modulo a large number only."""
    return sorted((slot_near(present, each.slot), each.load_mbps) for each in port.slots)


def loads_table(reading: Any, present: int, every: bool, used: Used) -> Table:
    """Return a table with one row per port: what it sends, and its planned load by slot from `present` on.

    With `every`, it includes past slots and ports that neither send nor have load. `used` has, by port, what
    it sends and receives, in Mbit/s. There is a column of backlogs if anything waits in a queue.
    """
    backlogs = {link: queue.backlog_bytes for link, queue in _queues(reading).items()}
    waiting = any(backlogs.get(port.link) for port in reading.ports)
    columns = ["switch", "port", "to", "capacity\nMbit/s", "measured\nMbit/s"]
    table = plain_table(*columns, *(["queue\nKB"] if waiting else []), text=3)
    if not reading.lacking:
        table.add_column("planned Mbit/s by slot", overflow="fold")
    refusing = any(port.refused for port in reading.ports)
    if refusing:
        table.add_column("carriers refused", overflow="fold")
    for port in reading.ports:
        slots = [(at, load) for at, load in _slots(port, present) if every or (load and at >= present)]
        sent = used[port.switch, port.port][0]
        held = backlogs.get(port.link, 0)
        if slots or every or port.refused or held or (sent is not None and sent >= SHOWN_MBPS):
            text = "  ".join(f"{at - present:+d}:{load:g}" for at, load in slots)
            measured = "-" if sent is None else f"{sent:.1f}"
            row = [port.switch, str(port.port), port.peer, f"{port.capacity_mbps:g}", measured]
            row += [f"{held / 1e3:.1f}" if port.link in backlogs else "-"] if waiting else []
            if not reading.lacking:
                row.append(text or "-")
            if refusing:
                row.append("  ".join(f"{reason}:{count}" for reason, count in sorted(port.refused.items())))
            table.add_row(*row)
    if reading.problem:
        table.caption = reading.problem
    elif not table.rows:
        table.caption = f"nothing is planned or sent on any of {len(reading.ports)} ports"
    return table
