"""`entrain place`: run a queue of jobs onto a cluster on paper, or ask a running one about a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from machine.errors import BadInput
from machine.explain import suggestion
from machine.terminal import plain_table, print_whole


@click.command(short_help="Place jobs onto a cluster, without a network.")
@click.argument("file", metavar="CLUSTER.toml|JOB.toml", type=click.Path(path_type=Path))
@click.option("--jobs", type=click.Path(path_type=Path), help="CSV file, a line for each job.")
@click.option(
    "--strategy", metavar="NAME", help="What places the jobs, such as vclos. Default: list the names."
)
@click.option("--queue", default="fifo", show_default=True, help="fifo, edf or fewest-gpus.")
@click.option("--backfill", is_flag=True, help="Start later jobs too, if that does not delay the first one.")
@click.option(
    "--locality/--no-locality",
    default=None,
    help="Give jobs whole servers, and small ones a part of one. On except for ocs-relaxed.",
)
@click.option("--solver", is_flag=True, help="Find virtual Clos networks by HiGHS instead of the search.")
@click.option("--dry-run", is_flag=True, help="Ask the running cluster what the job in JOB.toml would get.")
@click.option("--network", help="With --dry-run: which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print the placements as JSON.")
def command(
    file: Path,
    jobs: Path | None,
    strategy: str | None,
    queue: str,
    backfill: bool,
    locality: bool | None,
    solver: bool,
    dry_run: bool,
    network: str | None,
    as_json: bool,
) -> None:
    """Place the jobs of a CSV file (job, gpus, arrival_s, duration_s, pattern) onto CLUSTER.toml.

    Jobs queue, start when they get a placement, run for their duration, and release it. Nothing is
    brought up. docs/placement.md describes the files and the output.

    With --dry-run, say instead which GPUs, leaves, spines, links and circuits the job in JOB.toml
    would get if it were submitted now, or why it would wait: for GPUs, for the network, or behind
    another job. Nothing changes. docs/vclos.md describes the file.
    """
    if dry_run:
        if jobs or strategy:
            raise BadInput("--dry-run: asks a running cluster, which has a strategy; leave out the others")
        _dry_run(file, network, as_json)
        return
    if jobs is None or strategy is None:
        from workloads.strategies import strategies  # loads numpy, which `entrain --help` need not wait for

        raise BadInput(
            f"--jobs and --strategy: give both, or --dry-run to ask a running cluster about a job; "
            f"strategies: {', '.join(strategies())}"
        )
    _on_paper(file, jobs, strategy, queue, backfill, locality, solver, as_json)


def _dry_run(file: Path, network: str | None, as_json: bool) -> None:
    from controlplane.api_pb2 import JobRequest
    from controlplane.client import call, choose
    from entrain.jobs import document, placement_lines, read_job, waits_for

    request = JobRequest(**read_job(file))
    with call(choose(network)) as stub:
        plan = stub.Place(request)
    if as_json:
        click.echo(json.dumps(document(plan)))
        return
    console = Console()
    if not plan.HasField("placement"):
        console.print(f"{request.name} would wait: {waits_for(plan.waiting)}", highlight=False)
    else:
        console.print(f"{request.name} would start now", highlight=False)
        table = plain_table("", "", text=2)
        table.columns[1].no_wrap = False
        table.show_header = False
        for word, values in placement_lines(plan.placement, plan.circuits_changed):
            table.add_row(f"{word}  ", values)
        console.print(table)
    if plan.problem:
        console.print(f"problem: {plan.problem}", highlight=False, style="bold")


def _on_paper(
    cluster: Path,
    jobs: Path,
    strategy: str,
    queue: str,
    backfill: bool,
    locality: bool | None,
    solver: bool,
    as_json: bool,
) -> None:
    # These load numba, which `entrain --help` need not wait for.
    from entrain.placing import document, read_cluster, read_jobs
    from schedulers.placement.queue import ORDERS, run
    from workloads.strategies import strategies

    known_strategies = strategies()
    for option, given, known in (("--strategy", strategy, known_strategies), ("--queue", queue, ORDERS)):
        if given not in known:
            raise BadInput(f"{option}: there is no {given!r}; {suggestion(given, known)}")
    chosen = replace(known_strategies[strategy], solver=solver)
    if locality is not None:
        chosen = replace(chosen, locality=locality)
    state = read_cluster(cluster, chosen)
    done = run(read_jobs(jobs, state, chosen), state, chosen, queue, backfill)
    result = document(state, chosen, done)
    if as_json:
        click.echo(json.dumps(result))
    else:
        print_whole(_table(result))


def _seconds(value: float) -> str:
    """Return seconds without an exponent, such as 1507530000.25: some traces count from 1970."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _table(result: dict[str, Any]) -> Table:
    headings = ("job", "start s", "end s", "GPUs", "leaves", "spines", "links", "circuits", "waited s for")
    table = plain_table(*(heading.replace(" s", "\ns") for heading in headings), text=1)
    for job in result["jobs"]:
        waited = "\n".join(
            f"{_seconds(each['to_s'] - each['from_s'])} {each['behind'] or each['cause']}"
            for each in job["waiting"]
        )
        sizes = [str(len(job[key])) for key in ("gpus", "leaves", "spines", "links", "circuits")]
        table.add_row(job["job"], _seconds(job["start_s"]), _seconds(job["end_s"]), *sizes, waited or "-")
    failed = result["fragmentation"]
    table.caption = (
        f"failed attempts for want of GPUs: {failed['gpus']}, of links: {failed['network']}; "
        f"circuits changed: {result['circuits_changed']}"
    )
    return table
