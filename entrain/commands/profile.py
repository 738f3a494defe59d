"""`entrain profile FILE.toml`: measure what an experiment's jobs send in an iteration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console

from machine.errors import BadInput, EntrainError
from machine.terminal import plain_table
from workloads.profiles import GBPS

if TYPE_CHECKING:
    from entrain.experiment import Experiment
    from entrain.profiling import Measured


@click.command(short_help="Measure the profile of each job, alone.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the profiles to this TOML file.")
@click.option(
    "--iterations",
    type=click.IntRange(min=6),
    default=10,
    show_default=True,
    help="Of each job; the first and the last do not count.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Use this seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(file: Path, out: Path | None, iterations: int, seed: int | None, as_json: bool) -> None:
    """Run each job of the experiment FILE alone in its network, and measure its profile.

    The hosts' agents count what its flows send, and are told when its iterations begin. `entrain simulate
    cassini-score --profiles` reads the file in --out: the jobs that are periodic, and the links they share.
    """
    from entrain.commands.run import owned_place
    from entrain.experiment import load_experiment
    from entrain.run.profiles import profiles
    from entrain.run.runner import bring_up, check_machine

    experiment = load_experiment(file, seed=seed)
    if experiment.cluster is not None:
        raise BadInput(f"{file}: [cluster]: its jobs have no hosts yet; give an experiment with [[job]]")
    check_machine(experiment)
    console = Console(stderr=True)
    with owned_place(console, None) as place:
        made = bring_up(experiment, place.record, place.directory, place.namespace, place.report)
        with made as running:
            found = list(profiles(running, iterations, place.report))
            place.ignore_signals()
    if out is not None:
        _write(out, experiment, found, console)
    if as_json:
        click.echo(json.dumps({"jobs": [_document(each) for each in found]}, indent=2))
    else:
        _show(found, Console())


def _write(out: Path, experiment: Experiment, found: Sequence[Measured], console: Console) -> None:
    from entrain.profiling import links_of
    from entrain.run.profiles import conditions
    from workloads.profiles import profiles_text

    profiles = {each.name: each.profile for each in found if each.profile is not None}
    if not profiles:
        raise EntrainError(f"{out}: not written, because no job is periodic")
    routing, _ = conditions(experiment)
    links = links_of(experiment.topology, routing, (each for each in found if each.name in profiles))
    try:
        out.write_text(
            profiles_text(profiles, [link for link in links if len(link.jobs) > 1] or links), encoding="utf-8"
        )
    except OSError as error:
        raise BadInput(f"--out {out}: {error.strerror}") from error
    console.print(f"{len(profiles)} profiles in {out}", highlight=False)


def _document(job: Measured) -> dict[str, Any]:
    found = job.estimate
    return {
        "name": job.name,
        "verdict": found.verdict,
        "iterations": max(len(found.begins) - 1, 0),
        "period_ms": _number(1e3 * found.period),
        "period_spread": _number(found.period_spread),
        "drift": _number(found.drift),
        "phase_spread_ms": _number(1e3 * found.phase_spread),
        "rate_spread": _number(found.rate_spread),
        "link": job.busiest,
        "phases": [
            {"start_ms": 1e3 * start, "end_ms": 1e3 * end, "gbps": rate / GBPS}
            for start, end, rate in (job.profile.ups.tolist() if job.profile else ())
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _show(found: Sequence[Measured], console: Console) -> None:
    figures = ("period ms", "± %", "drift %", "sends ms", "± ms", "Mbit/s", "± %")
    table = plain_table("job", "verdict", *figures, text=2)
    for job in found:
        each = job.estimate
        ups = job.profile.ups if job.profile else np.empty((0, 3))
        sends = float((ups[:, 1] - ups[:, 0]).sum())
        rate = float((ups[:, 1] - ups[:, 0]) @ ups[:, 2]) / sends if sends else math.nan
        row = (
            1e3 * each.period,
            1e2 * each.period_spread,
            1e2 * each.drift,
            1e3 * sends,
            1e3 * each.phase_spread,
            1e3 * rate / GBPS,
            1e2 * each.rate_spread,
        )
        table.add_row(
            job.name, each.verdict, *("-" if math.isnan(figure) else f"{figure:.4g}" for figure in row)
        )
    console.print(table)
