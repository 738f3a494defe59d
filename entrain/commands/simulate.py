"""`entrain simulate NAME`: the papers' experiments in the flow-level simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from machine.errors import BadInput
from machine.signals import ending_once


@click.command()
@click.argument("name")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Trace file; by default the one included, or coflows drawn with the distributions of Facebook's.",
)
@click.option("--policy", help="Run these policies only, separated by commas.")
@click.option(
    "--limit", type=int, help="Use the first N jobs or coflows only; of mltcp-two-jobs, N iterations."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random draw.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write results here; what is there already is not run again.",
)
@click.option(
    "--flows", is_flag=True, help="Write each flow's completion time to flows.csv as well (needs --out)."
)
@click.option(
    "--usage",
    type=float,
    metavar="SECONDS",
    help="Write each link's utilisation over time to usage.csv and usage.png, in bins of SECONDS "
    "(needs --out).",
)
@click.option("--workers", type=int, help="Processes at a time; all cores by default.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "dask"]),
    default="local",
    show_default=True,
    help="What runs sweeps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--page", hidden=True)
def command(
    name: str,
    trace: Path | None,
    policy: str | None,
    limit: int | None,
    seed: int,
    out: Path | None,
    flows: bool,
    usage: float | None,
    workers: int | None,
    engine: str,
    as_json: bool,
    page: str | None,
) -> None:
    """Run experiment NAME (parrot-jct, parrot-readings, parrot-scale, parrot-eta, parrot-theta,
    parrot-load, parrot-ps, slots-jct, slots-models, slots-tau, slots-latency, coflow-fb2010,
    mltcp-two-jobs).

    \b
    Files in --out, with their columns; those of what the experiment varies
    (policy, gbps, ...) follow:
      summary.json  totals per point, decisions' latency, the paper's claims
      jobs.csv      job, arrival_s, jct_s, waiting_s (sending nothing though it had
                    bytes to send), lower_bound_s (alone in the network)
      coflows.csv   coflow, arrival_s, cct_s, bytes
      flows.csv     with --flows: coflow, src, dst (hosts), bytes, arrival_s, fct_s
      usage.csv     with --usage: time_s (where the bin begins), link,
                    utilisation (mean share of its capacity, 0 to 1),
                    capacity_gbit_s
    NAME.png and usage.png plot them; .parquet files of the same columns lie
    beside the .csv files where pyarrow is installed.

    \b
    Three policies of parrot-... and coflow-fb2010 are called Aalo somewhere:
      aalo        all coflows of a job as one, least bytes sent first (Parrot's
                  evaluation)
      d-clas-job  all coflows of a job as one, in D-CLAS' queues (Parrot's description)
      d-clas      each coflow by itself, in D-CLAS' queues (Aalo's paper)
    """
    # The simulator loads numpy and numba, which `entrain --help` need not wait for.
    from simulation import output, sweep
    from simulation.experiments.experiment import Point
    from simulation.experiments.registry import points

    if name == "results" or page is not None:
        target = page or "FILE"
        raise BadInput(f"entrain report writes the page: entrain report {out or 'DIR'} --page {target}")
    if workers is not None and workers < 1:
        raise BadInput(f"--workers is {workers}; give at least 1")
    if out is None and (flows or usage is not None):
        raise BadInput("--flows and --usage write files; give --out DIR")
    experiment, todo = points(name, trace, policy, limit, seed, flow_times=flows, usage_s=usage)
    console = Console(stderr=True)
    if experiment.trace is not None and experiment.trace.path is None and trace is None:
        console.print(
            f"note: the workload is drawn at random with the distributions of {experiment.trace.origin}; "
            "entrain does not include that file: download it and name it by --trace to use it",
            highlight=False,
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=as_json or not sys.stderr.isatty()) as progress:
        task = progress.add_task(name, total=len(todo))

        def done(point: Point, resumed: bool) -> None:
            progress.advance(task)

        try:
            with ending_once():
                results = sweep.run_points(
                    todo, directory=out, workers=workers, engine=cast("sweep.Engine", engine), done=done
                )
        except (KeyboardInterrupt, SystemExit):
            if out is not None:
                console.print(
                    f"interrupted; finished points are kept in {out}, the same command goes on from there"
                )
            raise
    summary = output.summarise(experiment, todo, results)
    if out is not None:
        output.write(out, summary, todo, results)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _print(summary)


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    shown = (
        "total_jct_s",
        "mean_jct_s",
        "p99_jct_s",
        "max_jct_s",
        "mean_cct_s",
        "p95_cct_s",
        "lower_bound_s",
        "mean_iteration_s",
        "p99_iteration_s",
        "max_iteration_s",
        "best_iteration_s",
        "mean_to_best",
    )
    first = summary["points"][0]
    keys = [
        k
        for k in summary["parameters"]
        if k == "policy" or len({str(p.get(k)) for p in summary["points"]}) > 1
    ]
    # A coflow of a training job is a part of it, and its time says little.
    hidden = "_cct_" if first.get("mean_cct_s") != first.get("mean_jct_s") else "_jct_"
    values = [k for k in shown if k in first and (hidden not in k or k == "total_jct_s")]
    # Headers may wrap at spaces, the points' names must not be cut.
    columns = [Column(k.replace("_", " "), no_wrap=k in summary["parameters"]) for k in [*keys, *values]]
    table = Table(*columns, *(["decision p99 µs"] if first.get("decision") else []), title=summary["title"])
    for row in summary["points"]:
        cells = [str(row[k]) for k in keys] + [
            f"{row[k]:.0f}" if row[k] >= 1000 else f"{row[k]:.4g}" for k in values
        ]
        if first.get("decision"):
            cells.append(f"{row['decision'].get('p99_us', float('nan')):.0f}")
        table.add_row(*cells)
    console.print(table)
    for claim, value in summary["paper"].items():
        console.print(f"paper: {claim}: {value}")
