"""`entrain shell SWITCH`: open p4runtime-shell on a running switch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
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
    exits, the controller takes the switch back. It restores the tables that it fills. What you write to
    others, such as those of another program than entrain's, stays until a program is set. The exit status is
    1 if the switch refused a write.
    """
    from entrain.p4shell import command as session
    from entrain.p4shell import ensure, environment

    if address is None:
        place = find(switch, network)
    elif switch.isdecimal():
        place = Place(address, int(switch))
    else:
        raise BadInput(f"{switch}: with --address, SWITCH must be the device id, a number")
    python = ensure(lambda: click.echo("installing p4runtime-shell in its own environment", err=True))
    line = session(python, place.address, place.device_id, write=write, identity=place.operator)
    if as_json:
        click.echo(json.dumps({"command": line, "namespace": place.namespace}))
        return
    if write and place.keeps:
        click.echo(f"note: {place.keeps}", err=True)
    if place.namespace:
        from mininet_topos.isolation import NETNS, enter

        enter(NETNS / place.namespace)
    os.execve(line[0], line, environment())


@dataclass(frozen=True)
class Place:
    """Where a switch serves P4Runtime; `namespace` is empty for this one."""

    address: str
    device_id: int
    namespace: str = ""
    certificates: Path | None = None
    keeps: str = ""
    """What happens to entries that a shell writes, once it ends."""

    @property
    def operator(self) -> tls.Identity | None:
        """Who may call, with certificates."""
        return tls.identity_of(self.certificates, tls.OPERATORS) if self.certificates else None


def find(switch: str, network: str | None) -> Place:
    """Return where a switch of a running network serves P4Runtime. Raises BadInput and EntrainError."""
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose

    chosen = choose(network)
    with call(chosen) as stub:
        running = stub.GetNetwork(GetNetworkRequest())
    for known in running.switches:
        if known.name == switch:
            certificates = Path(known.certificates) if known.certificates else None
            keeps = (
                "the controller restores the tables that it fills when this shell ends"
                if running.fabric
                else f"{switch} runs {running.program}, which the controller does not fill: what you write "
                f"stays until a program is set or the switch restarts"
            )
            return Place(known.grpc_address, known.device_id, running.namespace, certificates, keeps)
    names = ", ".join(known.name for known in running.switches)
    raise BadInput(f"{switch}: no such switch in network {chosen.name}; it has {names}")
