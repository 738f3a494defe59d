"""`entrain certs FILE.toml DIR`: certificates for a network, from an authority of its own."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they hold."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, directory: Path, days: int, as_json: bool) -> None:
    """Make an authority, and certificates of the switches, hosts and operator of a topology or experiment.

    What DIR holds already stays, so that a network can grow. With `certificates = "DIR"` in [topology],
    switches serve operators alone, and the controller serves no switch under another's name.
    """
    from entrain.certificates import certificates, issue
    from entrain.experiment import load_network

    topology = load_network(file)
    made = issue(topology, directory, days)
    if as_json:
        click.echo(
            json.dumps({"directory": str(directory), "made": made, "all": list(certificates(topology))})
        )
        return
    click.echo(
        f"{directory}: {len(made)} certificates made, valid for {days} days"
        if made
        else f"{directory}: has all certificates already"
    )
    if made:
        click.echo(
            f'use them with certificates = "{directory}" in [topology]; keep {directory}/ca.key secret'
        )
