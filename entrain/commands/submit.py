"""`entrain submit`: let a job wait for GPUs and a network of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from machine.errors import EntrainError


@click.command(short_help="Submit a job to a cluster.")
@click.argument("file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--name", help="Another name than the file's, to submit it again.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--watch", is_flag=True, help="Show each step until the job has its network.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per change.")
def command(file: Path, name: str | None, network: str | None, watch: bool, as_json: bool) -> None:
    """Submit the job in JOB.toml to a cluster (`entrain up` of a file with [cluster]).

    The job waits for its turn. Once it is ready, its hosts reach each other and nobody else, until
    `entrain cancel`. With --watch the exit status is 1 if it is cancelled before. docs/vclos.md
    describes the file.
    """
    from controlplane.api_pb2 import JobRequest
    from controlplane.client import call, choose
    from entrain.jobs import document, read_job

    request = JobRequest(**{**read_job(file), **({"name": name} if name else {})})
    with call(choose(network)) as stub:
        if not watch:
            job = stub.Submit(request)
            click.echo(
                json.dumps(document(job)) if as_json else f"job {job.name} is submitted: `entrain jobs`"
            )
            return
        for job in stub.SubmitAndWatch(request):
            click.echo(json.dumps(document(job)) if as_json else _line(job))
            if job.phase == "running":
                return
    raise EntrainError(f"job {request.name} was cancelled before it had its network")


def _line(job: Any) -> str:
    from entrain.jobs import has_or_waits, ranges, waits_for

    if job.step == "ready":
        return f"ready: {has_or_waits(job)}, waited {job.start_s - job.arrival_s:.3f} s"
    if job.step == "reserved":
        switches = [*job.placement.leaf_names, *job.placement.spine_names]
        return f"reserved: {ranges(job.placement.hosts)} on {ranges(switches)}"
    if job.step == "circuits":
        return f"circuits: {len(job.placement.circuits)} joined, {job.circuits_changed} of them anew"
    if job.step == "tables":
        return "tables: written on every switch"
    if job.step == "back":
        return f"undone, and waits again: {job.problem}"
    if job.HasField("waiting"):
        return f"waits: {waits_for(job.waiting)}"
    return _OTHERWISE.get(job.step or job.phase, str(job.phase))


_OTHERWISE: dict[str, str] = {
    "waiting": "submitted",
    "leaving": "cancelled: it leaves",
    "no tables": "undone: the tables of every switch",
    "no circuits": "undone: its circuits are free",
}
"""What is said of other steps, or of a phase without one."""
