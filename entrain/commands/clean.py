"""`entrain clean`: remove what crashed runs left behind."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from machine.errors import EntrainError


@click.command(short_help="Remove what crashed runs left on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Remove namespaces, interfaces, processes and files left by crashed runs. Running networks stay."""
    from machine.record import clean_stale, records

    if os.geteuid() != 0:
        raise EntrainError("clean removes namespaces and interfaces; run as root")
    removed = clean_stale()
    running = [(path.stem, owner.name) for path, owner, _, alive in records() if alive]
    if as_json:
        alive = [{"record": name, "process_id": int(pid)} for name, pid in running]
        click.echo(json.dumps({"removed": [asdict(resource) for resource in removed], "running": alive}))
        return
    for resource in removed:
        where = f" in namespace {resource.netns}" if resource.netns else ""
        click.echo(f"removed {resource.kind} {resource.name}{where}")
    if not removed:
        click.echo("nothing to remove")
    for name, pid in running:
        click.echo(f"kept: {name}, whose process {pid} is running")
