"""`entrain schema KIND`: the JSON schema of a kind of file."""

from __future__ import annotations

import json

import click

from entrain.schemas import KINDS


@click.command(short_help="Print the JSON schema of a kind of file, for editors.")
@click.argument("kind", type=click.Choice(tuple(KINDS)))
def command(kind: str) -> None:
    """Print the JSON schema of topology, experiment or job files.

    Editors with a TOML language server (such as Even Better TOML) complete keys with it: save it to a file,
    and begin your own file with `#:schema FILE`.
    """
    from entrain.schemas import schema

    click.echo(json.dumps(schema(kind), indent=2))
