"""`entrain doctor`: what this machine has of what entrain needs, and the remedy for what it lacks."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Try everything that entrain needs; exit status 0 when all that is required was found."""
    from entrain.doctor import examine

    findings = list(examine())
    lacking = [finding for finding in findings if finding.required and finding.state != "found"]
    if as_json:
        click.echo(json.dumps({"ok": not lacking, "needs": [asdict(finding) for finding in findings]}))
    else:
        table = Table("need", "", "for", "remedy")
        for finding in findings:
            optional = "" if finding.required or finding.state == "found" else " (optional)"
            colour = {"found": "green", "missing": "yellow" if optional else "red"}.get(
                finding.state, "yellow"
            )
            state = finding.detail if finding.state == "found" else finding.state + optional
            table.add_row(finding.name, f"[{colour}]{state}", finding.purpose, finding.remedy)
        Console().print(table)
        verdict = (
            f"lacking: {', '.join(finding.name for finding in lacking)}"
            if lacking
            else "all that is required is here"
        )
        click.echo(verdict)
    if lacking:
        sys.exit(1)
