"""`entrain cancel`: take a job out of the queue, or release its network."""

from __future__ import annotations

import json

import click


@click.command(short_help="Cancel a job, and release what it holds.")
@click.argument("job")
@click.option("--ended", is_flag=True, help="It has ended by itself: list it as `ended`, not `cancelled`.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(job: str, ended: bool, network: str | None, as_json: bool) -> None:
    """Release what JOB holds, or take it out of the queue.

    Its processes are not touched, but their packets are dropped from now on. If a switch or the OCS
    does not answer, the job stays `leaving`, and keeps its GPUs until its network is undone.
    """
    from controlplane.api_pb2 import CancelRequest
    from controlplane.client import call, choose
    from entrain.jobs import document

    with call(choose(network)) as stub:
        done = stub.Cancel(CancelRequest(name=job, ended=ended))
    if as_json:
        click.echo(json.dumps(document(done)))
    elif done.phase == "leaving":
        click.echo(f"job {job} is leaving, and holds its GPUs until its network is undone: `entrain jobs`")
    else:
        click.echo(f"job {job} is {done.phase}")
