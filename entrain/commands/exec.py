"""`entrain exec HOST CMD`: run a command on a host of a running network."""

from __future__ import annotations

import os
from pathlib import Path

import click

from machine.errors import BadInput, EntrainError
from machine.process import become

_MOVED = "(to publish the progress of a training script, use `entrain train -- COMMAND`)"


@click.command(
    short_help="Run a command on a host.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--network", help="Needed when several networks are up.")
@click.argument("host")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def command(network: str | None, host: str, program: tuple[str, ...]) -> None:
    """Run CMD on HOST of a network that is up, in its network namespace, and exit with its status.

    \b
    entrain exec h1 ping -c 3 10.2.1.2
    entrain exec h1 bash
    """
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose
    from mininet_topos.isolation import enter

    try:
        chosen = choose(network)
    except EntrainError as error:
        raise type(error)(f"{error} {_MOVED}") from None
    with call(chosen) as stub:
        running = stub.GetNetwork(GetNetworkRequest())
    known = {each.name: each.process_id for each in running.hosts}
    if host not in known:
        raise BadInput(f"{host}: no such host in network {chosen.name}; it has {', '.join(known)} {_MOVED}")
    if not known[host]:
        raise BadInput(f"{host}: network {chosen.name} does not emulate its hosts; log in to the host itself")
    if not program:
        raise BadInput(f"{host}: give a command to run, for example `entrain exec {host} ip address`")
    enter(Path(f"/proc/{known[host]}/ns/net"))
    become(program, os.environ)
