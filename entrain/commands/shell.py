"""`entrain shell SWITCH`: open p4runtime-shell on a running switch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from machine import tls
from machine.errors import BadInput


@click.command(short_help="Open p4runtime-shell on a switch.")
@click.argument("switch")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option(
    "--address", help="HOST:PORT of a switch outside entrain's networks; SWITCH is then its device id."
)
@click.option("--write", is_flag=True, help="Take over the switch from the controller while the shell runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the command instead of running it.")
def command(switch: str, network: str | None, address: str | None, write: bool, as_json: bool) -> None:
    """Open p4runtime-shell on SWITCH. It reads commands from the terminal or standard input.

    While a controller is primary, the shell can only read. With --write it takes over the switch. When it
    exits, the controller takes the switch back and restores its state. The exit status is 1 if the switch
    refused a write.
    """
    from entrain.p4shell import command as session
    from entrain.p4shell import ensure, environment

    namespace, certificates = "", None
    if address is None:
        address, device_id, namespace, certificates = find(switch, network)
    elif switch.isdecimal():
        device_id = int(switch)
    else:
        raise BadInput(f"{switch}: with --address, SWITCH must be the device id, a number")
    python = ensure(lambda: click.echo("installing p4runtime-shell in its own environment", err=True))
    operator = tls.identity_of(certificates, tls.OPERATORS) if certificates else None
    line = session(python, address, device_id, write=write, identity=operator)
    if as_json:
        click.echo(json.dumps({"command": line, "namespace": namespace}))
        return
    if namespace:
        from mininet_topos.isolation import NETNS, enter

        enter(NETNS / namespace)
    os.execve(line[0], line, environment())


def find(switch: str, network: str | None) -> tuple[str, int, str, Path | None]:
    """Return gRPC address, device id, network namespace and certificates of a switch of a running network."""
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose

    chosen = choose(network)
    with call(chosen) as stub:
        running = stub.GetNetwork(GetNetworkRequest())
    for known in running.switches:
        if known.name == switch:
            certificates = Path(known.certificates) if known.certificates else None
            return known.grpc_address, known.device_id, running.namespace, certificates
    names = ", ".join(known.name for known in running.switches)
    raise BadInput(f"{switch}: no such switch in network {chosen.name}; it has {names}")
