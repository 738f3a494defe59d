"""`entrain down`: take down a network that `entrain up` brought up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from machine.errors import EntrainError

TIMEOUT_S = 30.0
"""How long the controller may take to remove the network."""
POLL_S = 0.05
"""How often its record is checked."""


@click.command()
@click.argument("file", metavar="[FILE.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path | None, network: str | None, as_json: bool) -> None:
    """Take down the network of FILE.toml, or the only one that is up."""
    from controlplane.api_pb2 import ShutdownRequest
    from controlplane.client import call, choose
    from entrain.experiment import load_network

    if file is not None:
        network = load_network(file).name
    chosen = choose(network)
    with call(chosen) as stub:
        process_id = stub.Shutdown(ShutdownRequest()).process_id
    _wait(process_id, chosen.name)
    click.echo(json.dumps({"network": chosen.name}) if as_json else f"network {chosen.name} is down")


def _wait(process_id: int, name: str) -> None:
    """Wait until the controller has removed everything. It removes its record last."""
    from machine.record import running

    deadline = time.monotonic() + TIMEOUT_S
    while running(f"up-{name}"):
        if time.monotonic() > deadline:
            raise EntrainError(
                f"network {name}: process {process_id} is still taking it down after {TIMEOUT_S:g} s"
            )
        time.sleep(POLL_S)
