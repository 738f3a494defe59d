"""`entrain jobs`: the jobs of a cluster, what they have, and why they wait."""

from __future__ import annotations

import json
import time

import click
from rich.console import Console


@click.command()
@click.option("--all", "past", is_flag=True, help="Show jobs that are over, too.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with placements and waits.")
def command(past: bool, network: str | None, as_json: bool) -> None:
    """List the jobs of a cluster: those that have a network, then those that wait, in their order."""
    from controlplane.api_pb2 import ListJobsRequest
    from controlplane.client import call, choose
    from entrain.jobs import document, jobs_table

    with call(choose(network)) as stub:
        found = stub.ListJobs(ListJobsRequest(past=past))
    if as_json:
        click.echo(json.dumps({**document(found), "jobs": [document(job) for job in found.jobs]}))
        return
    console = Console()
    if found.jobs:
        console.print(jobs_table(found.jobs, time.time()))
    console.print(
        f"{len(found.jobs) or 'no'} job{'s' * (len(found.jobs) != 1)}; "
        f"{found.free_gpus} of {found.gpus} GPUs are free; strategy {found.strategy}, queue {found.queue}",
        highlight=False,
    )
    if found.problem:
        console.print(f"some jobs wait for this: {found.problem}", highlight=False, style="bold")
