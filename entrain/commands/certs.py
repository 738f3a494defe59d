"""`entrain certs FILE.toml DIR`: certificates for a network, from an authority of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click


@click.command(short_help="Make certificates for switches, hosts and users.")
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they hold."
)
@click.option("--submitter", "submitters", multiple=True, help="A user who may submit jobs; may be repeated.")
@click.option(
    "--reader", "readers", multiple=True, help="A user who may look at everything; may be repeated."
)
@click.option("--revoke", multiple=True, help="Revoke this certificate and make none; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: Path,
    directory: Path,
    days: int,
    submitters: tuple[str, ...],
    readers: tuple[str, ...],
    revoke: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make an authority, and certificates of a network: switches, hosts, controller, operator and users.

    What DIR holds already stays, so that a network can grow. With `certificates = "DIR"` in [topology],
    switches serve operators alone, and the controller serves no switch under another's name.
    """
    from entrain import certificates as authority
    from entrain.experiment import load_network
    from machine.errors import BadInput
    from machine.toml import NAME_PATTERN, NAME_WORDS

    topology = load_network(file)
    for option, names in (("--submitter", submitters), ("--reader", readers), ("--revoke", revoke)):
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name):
                raise BadInput(f"{option} {name!r}: {NAME_WORDS}")
    if revoke:
        path = authority.revoke(directory, revoke)
        if as_json:
            click.echo(json.dumps({"revoked": revoke, "list": str(path)}))
        else:
            click.echo(
                f"{path}: revokes {', '.join(revoke)}; copy it beside ca.crt on every machine; "
                f"without --revoke, this command makes new certificates"
            )
        return
    made = authority.issue(topology, directory, days, submitters, readers)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "directory": str(directory),
                    "made": made,
                    "all": list(authority.certificates(topology, submitters, readers)),
                }
            )
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
