"""`entrain drops`: what the switches and queues of a running network have dropped, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from machine.terminal import plain_table, print_whole

if TYPE_CHECKING:
    from controlplane.queues import Queue


@click.command(short_help="Show what switches and queues dropped, and why.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(network: str | None, as_json: bool) -> None:
    """Show how many packets each switch has dropped by a rule of the network, and each queue.

    softswitch also counts packets that exceed the MTU of the link that they should leave by.
    A switch counts since its program was set, and an interface of an emulated network since that came up.
    Packets are the kernel's: an offloaded packet, of up to 64 KB, counts once.
    """
    from controlplane.api_pb2 import ListDropsRequest
    from controlplane.client import RUNS, call, choose
    from controlplane.queues import queue_of

    with call(choose(network, runs=RUNS)) as stub:
        found = stub.ListDrops(ListDropsRequest())
    if as_json:
        switches = {switch.name: dict(switch.packets) for switch in found.switches}
        queues = [vars(queue_of(queue)) for queue in found.queues]
        too_long = [
            {field.name: getattr(row, field.name) for field in row.DESCRIPTOR.fields}
            for row in found.too_long
        ]
        lacking = {"lacking": found.lacking} if found.lacking else {}
        click.echo(json.dumps({"switches": switches, "queues": queues, "too_long": too_long, **lacking}))
        return
    table = drops_table(found)
    if table.rows:
        print_whole(table)
        for row in found.too_long:
            click.echo(
                f"{row.link}: switches do not fragment; raise mtu = {row.mtu} of this link in the topology, "
                f"or lower mtu of the hosts by the bytes of the headers that the switches add"
            )
    elif found.lacking:
        click.echo("no queue has been full" if found.queues else "the switches' queues cannot be read")
    elif found.queues:
        click.echo("no switch has dropped anything, and no queue has been full")
    else:
        click.echo("no switch has dropped anything by a rule of the network; their queues cannot be read")
    if found.lacking:
        click.echo(found.lacking)


def drops_table(found: Any) -> Table:
    """Return a table with a row for each reason that has dropped something, and for each queue that has."""
    from controlplane.queues import by_link, queue_of

    table = plain_table("at", "port", "to", "reason", "packets", text=4)
    for switch in found.switches:
        for reason, packets in switch.packets.items():
            if packets:
                table.add_row(switch.name, "-", "-", reason, str(packets))
    for row in found.too_long:
        peer = row.link.partition("->")[2]
        table.add_row(row.switch, str(row.port), peer, f"longer than mtu {row.mtu}", str(row.packets))
    for queue in by_link(map(queue_of, found.queues)):
        if queue.dropped_packets:
            table.add_row(*_row(queue))
    return table


def _row(queue: Queue) -> tuple[str, ...]:
    port = str(queue.port) if queue.port else "-"
    if queue.place == "relay":
        peer = queue.link.removeprefix(f"{queue.node}-")
        return queue.node, port, peer, "relay full, either way", str(queue.dropped_packets)
    return queue.node, port, queue.link.partition("->")[2], "queue full", str(queue.dropped_packets)
