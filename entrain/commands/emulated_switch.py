"""`entrain emulated-switch`: the process that keeps the load table of a switch which cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from machine.signals import noting_end

if TYPE_CHECKING:
    from controlplane.routing import Routing

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("file", type=PATH)
@click.option("--write", "directory", type=PATH, help="FILE is a topology: write its files here, and end.")
@click.option(
    "--routing",
    type=click.Choice(["ecmp", "source"]),
    default="source",
    show_default=True,
    help="With --write: how the switches route.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="With --write: where they will run.")
@click.option("--first-port", type=click.IntRange(1, 65535), default=9700, show_default=True)
def command(file: Path, directory: Path | None, routing: Routing, address: str, first_port: int) -> None:
    """Stand for the switch in FILE until SIGTERM or SIGINT: hosts announce schedules and ask for loads.

    With --write, make a file for each switch of a topology, and for each host the paths file that its agent
    takes (`entrain-agent --schedule --loads emulated --paths`).
    """
    if directory is not None:
        _write(file, directory, routing, address, first_port)
        return
    from hostbpf.emulated.server import load_switch, serving

    config = load_switch(file)
    with noting_end() as until_ended, serving(config) as where:
        click.echo(f"ready grpc={where} switch={config.name} ports={len(config.port)}")
        until_ended()


def _write(file: Path, directory: Path, routing: Routing, address: str, first_port: int) -> None:
    from entrain.experiment import load_network
    from mininet_topos.emulated_switches import write_files

    topology = load_network(file)
    addresses = {
        switch.name: f"{address}:{first_port + number}" for number, switch in enumerate(topology.switches)
    }
    switches, paths = write_files(topology, routing, directory, addresses)
    for path in (*switches.values(), *paths.values()):
        click.echo(path)
