"""`entrain down`: take down a network that `entrain up` brought up."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(short_help="Take a network down.")
@click.argument("file", metavar="[FILE.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path | None, network: str | None, as_json: bool) -> None:
    """Take down the network of FILE.toml, or the only one that is up."""
    from controlplane.client import choose
    from entrain.experiment import load_network
    from entrain.run.starting import stop

    if file is not None:
        network = load_network(file).name
    chosen = choose(network)
    stop(chosen)
    click.echo(json.dumps({"network": chosen.name}) if as_json else f"network {chosen.name} is down")
