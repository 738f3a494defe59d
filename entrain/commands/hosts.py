"""`entrain hosts`: the hosts of a running network."""

from __future__ import annotations

import json

import click


@click.command(short_help="List the hosts.")
@click.option("--network", help="Needed when several networks are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(network: str | None, as_json: bool) -> None:
    """List the hosts of a network that is up. `entrain exec HOST CMD` runs a command on one."""
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose
    from machine.terminal import plain_table, print_whole

    with call(choose(network)) as stub:
        found = stub.GetNetwork(GetNetworkRequest()).hosts
    if as_json:
        keys = ("name", "address", "interface", "switch", "port", "process_id")
        click.echo(json.dumps([{key: getattr(host, key) for key in keys} for host in found]))
        return
    table = plain_table("host", "address", "interface", "switch", "port", text=4)
    for host in found:
        table.add_row(host.name, host.address, host.interface, host.switch, str(host.port))
    print_whole(table)
