"""`entrain doctor`: try what entrain can do here, and say how to install what is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from entrain.doctor import Finding
    from entrain.features import Outcome


@click.command(short_help="Check what entrain needs on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--emulation",
    is_flag=True,
    help="Measure instead which emulated rates and queues to trust here (a minute).",
)
def command(as_json: bool, emulation: bool) -> None:
    """Check entrain's prerequisites on this machine, and try what it can do.

    Each feature's programs are loaded and attached, and packets sent through. The exit status is 0 if nothing
    required is missing or fails.
    """
    from entrain.doctor import examine
    from entrain.features import tried

    if emulation:
        sys.exit(not _emulation(as_json))
    findings, outcomes = list(examine()), tried()
    lacking = [finding for finding in findings if finding.required and finding.state != "found"]
    failing = [outcome for outcome in outcomes if outcome.required and outcome.state != "works"]
    ok = not lacking and not failing
    if as_json:
        needs, features = ([asdict(each) for each in list_] for list_ in (findings, outcomes))
        click.echo(json.dumps({"ok": ok, "needs": needs, "features": features}))
    else:
        show(findings, Console(), outcomes)
    if not ok:
        sys.exit(1)


def _emulation(as_json: bool) -> bool:
    """Compare emulated links here with Linux routers, and with their rates; return whether all agree."""
    from machine.terminal import plain_table, print_whole
    from mininet_topos.comparison.compare import shortfalls
    from mininet_topos.comparison.scenarios import SHORT

    found = {scenario.name: shortfalls(scenario) for scenario in SHORT}
    if as_json:
        click.echo(json.dumps({"ok": not any(found.values()), "emulation": found}))
    else:
        table = plain_table("emulated", "on this machine, beside Linux routers", text=2)
        for name, wrong in found.items():
            table.add_row(name, "\n".join(wrong) or "to be trusted")
        print_whole(table)
    return not any(found.values())


def show(findings: Sequence[Finding], console: Console, outcomes: Sequence[Outcome] = ()) -> None:
    """Print the verdict, then the features, what is missing with its remedy, and what was found."""
    lacking = [finding for finding in findings if finding.state != "found"]
    required = [finding for finding in lacking if finding.required]
    optional = [finding for finding in lacking if not finding.required]
    failing = [outcome.name for outcome in outcomes if outcome.required and outcome.state != "works"]
    if required or failing:
        reasons = [f"{_number(required)} missing"] if required else []
        reasons += [f"{name} does not work" for name in failing]
        console.print(f"[red]not ready[/red]: {'; '.join(reasons)}")
    else:
        rest = f"; {_number(optional, 'optional ')} missing" if optional else ""
        console.print(f"[green]ready[/green]: everything required was found{rest}")
    if outcomes:
        console.print()
        console.print(_table("feature", [(each.name, each.words) for each in outcomes]))
    for title, missing in (("required", required), ("optional", optional)):
        if missing:
            console.print()
            console.print(_table(f"{title}, not found", [(each.name, _remedy(each)) for each in missing]))
    found = [(each.name, each.detail) for each in findings if each.state == "found"]
    if found:
        console.print()
        console.print(_table("found", found))


def _number(findings: Sequence[Finding], kind: str = "") -> str:
    one = len(findings) == 1
    return f"{len(findings)} {kind}thing{' is' if one else 's are'}"


def _remedy(finding: Finding) -> str:
    tried = "" if finding.state == "missing" else f" ({finding.state})"
    return f"{finding.remedy}{tried}\nfor {finding.purpose}"


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of two columns. The second one folds, so nothing is cut on a narrow terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(title, overflow="fold", max_width=32)
    table.add_column("", overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table
