"""`entrain emulated-switch`: keep the load table for a switch that cannot keep one itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from machine.signals import noting_end

if TYPE_CHECKING:
    from controlplane.routing import Routing

PATH = click.Path(path_type=Path)


@click.command(short_help="Keep the load table for a switch that has none.")
@click.argument("file", type=PATH)
@click.option(
    "--write", "directory", type=PATH, help="Write the files for topology FILE to this directory, and exit."
)
@click.option(
    "--routing",
    type=click.Choice(["ecmp", "source"]),
    default="source",
    show_default=True,
    help="With --write: how the switches route.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="With --write: their address.")
@click.option(
    "--first-port",
    type=click.IntRange(1, 65535),
    default=9700,
    show_default=True,
    help="With --write: the first switch's port; the others follow.",
)
@click.option(
    "--certificates", type=PATH, help="With --write: the directory of their certificates (`entrain certs`)."
)
def command(
    file: Path,
    directory: Path | None,
    routing: Routing,
    address: str,
    first_port: int,
    certificates: Path | None,
) -> None:
    """Emulate the load table of the switch in FILE until SIGTERM or SIGINT.

    Hosts announce schedules to it and query loads. With --write, write a file for each switch of a topology,
    and for each host the paths file of its agent (`entrain-agent --schedule --loads emulated --paths`).
    """
    if directory is not None:
        _write(file, directory, routing, address, first_port, certificates)
        return
    from hostbpf.emulated.server import load_switch, serving

    config = load_switch(file)
    with noting_end() as until_ended, serving(config) as where:
        click.echo(f"ready grpc={where} switch={config.name} ports={len(config.port)}")
        until_ended()


def _write(
    file: Path,
    directory: Path,
    routing: Routing,
    address: str,
    first_port: int,
    certificates: Path | None,
) -> None:
    from entrain.experiment import load_network
    from machine.tls import check_local
    from mininet_topos.emulated_switches import write_files

    if certificates is None:
        check_local(f"{address}:{first_port}", "--address", "add --certificates (`entrain certs` makes them)")
    topology = load_network(file)
    addresses = {
        switch.name: f"{address}:{first_port + number}" for number, switch in enumerate(topology.switches)
    }
    switches, paths = write_files(topology, routing, directory, addresses, certificates=certificates)
    for path in (*switches.values(), *paths.values()):
        click.echo(path)
