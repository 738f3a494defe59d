"""`entrain place`: run a queue of jobs onto a cluster, without a network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from machine.errors import BadInput
from machine.explain import suggestion


@click.command()
@click.argument("cluster", type=click.Path(path_type=Path))
@click.option("--jobs", type=click.Path(path_type=Path), required=True, help="CSV file, a line for each job.")
@click.option(
    "--strategy",
    required=True,
    help="ecmp, balanced-ecmp, recmp, source, best, vclos, ocs-vclos or ocs-relaxed.",
)
@click.option("--queue", default="fifo", show_default=True, help="fifo, edf or fewest-gpus.")
@click.option("--backfill", is_flag=True, help="Start later jobs too, if that does not delay the first one.")
@click.option(
    "--locality/--no-locality",
    default=None,
    help="Give jobs whole servers, and small ones a part of one. On except for ocs-relaxed.",
)
@click.option("--solver", is_flag=True, help="Find virtual Clos networks by HiGHS instead of the search.")
@click.option("--json", "as_json", is_flag=True, help="Print the placements as JSON.")
def command(
    cluster: Path,
    jobs: Path,
    strategy: str,
    queue: str,
    backfill: bool,
    locality: bool | None,
    solver: bool,
    as_json: bool,
) -> None:
    """Place the jobs of a CSV file (job, gpus, arrival_s, duration_s, pattern) onto CLUSTER, a TOML file.

    Jobs queue, start when they get a placement, run for their duration, and release it. Nothing is
    brought up. docs/placement.md describes the files and the output.
    """
    # These load numba, which `entrain --help` need not wait for.
    from entrain.placing import document, read_cluster, read_jobs
    from schedulers.placement.queue import ORDERS, run
    from schedulers.placement.strategies import STRATEGIES

    for option, given, known in (("--strategy", strategy, STRATEGIES), ("--queue", queue, ORDERS)):
        if given not in known:
            raise BadInput(f"{option}: there is no {given!r}; {suggestion(given, known)}")
    chosen = replace(STRATEGIES[strategy], solver=solver)
    if locality is not None:
        chosen = replace(chosen, locality=locality)
    state = read_cluster(cluster, chosen)
    done = run(read_jobs(jobs, state, chosen), state, chosen, queue, backfill)
    result = document(state, chosen, done)
    if as_json:
        click.echo(json.dumps(result))
    else:
        Console().print(_table(result))


def _table(result: dict[str, Any]) -> Table:
    table = Table(
        Column("job", no_wrap=True),
        "start s",
        "end s",
        "GPUs",
        "leaves",
        "spines",
        "links",
        "circuits",
        Column("waited s for", no_wrap=True),
    )
    for job in result["jobs"]:
        waited = "\n".join(
            f"{each['to_s'] - each['from_s']:g} {each['behind'] or each['cause']}" for each in job["waiting"]
        )
        sizes = [str(len(job[key])) for key in ("gpus", "leaves", "spines", "links", "circuits")]
        table.add_row(job["job"], f"{job['start_s']:g}", f"{job['end_s']:g}", *sizes, waited or "-")
    failed = result["fragmentation"]
    table.caption = (
        f"failed attempts for want of GPUs: {failed['gpus']}, of links: {failed['network']}; "
        f"circuits changed: {result['circuits_changed']}"
    )
    return table
