"""`entrain jobs`: the jobs of a cluster, what they have, and why they wait. `entrain jobs run`: run one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path

import click
from rich.console import Console

from machine.errors import BadInput

LOOK_S = 0.2
"""How often the progress of a job is read."""


@click.group(short_help="List the jobs of a cluster; `jobs run` runs one.", invoke_without_command=True)
@click.option("--all", "past", is_flag=True, help="Show jobs that are over, too.")
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with placements and waits.")
@click.pass_context
def command(context: click.Context, past: bool, network: str | None, as_json: bool) -> None:
    """List the jobs of a cluster: those that have a network, then those that wait, in their order.

    `entrain jobs run JOB.toml` runs a job on the hosts of any network that is up.
    """
    if context.invoked_subcommand is not None:
        return
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
        console.print(f"problem: {found.problem}", highlight=False, style="bold")


@command.command()
@click.argument("file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--network", help="Which network; needed only if several are up.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def run(context: click.Context, file: Path, network: str | None, as_json: bool) -> None:
    """Run the job in JOB.toml on hosts of a network that is up, and print its times.

    Meanwhile `entrain watch` shows it. Jobs of different names can run at the same time. The file has a table
    [job] with the keys of [[job]] in experiments. On a cluster, hosts reach only those of their own job:
    first submit it, and name the hosts that it got.
    """
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import call, choose
    from entrain.commands.run import shown_progress
    from entrain.run.job import Place, job_on
    from entrain.run.live import Training
    from entrain.run.training import DIRECTORY, described
    from machine.packages import run_module
    from machine.signals import ending_once

    chosen = choose(network)
    with call(chosen) as stub:
        found = stub.GetNetwork(GetNetworkRequest()).hosts
    if not all(host.process_id for host in found):
        raise BadInput(f"network {chosen.name} does not emulate its hosts; start the job on the hosts itself")
    places = [Place(host.name, host.address, host.switch, host.process_id) for host in found]
    spec = job_on(file, places, chosen.directory / DIRECTORY)
    with ending_once(), described(spec, chosen.name, f"{file}: [job]") as description:
        line = [*run_module("workloads"), "launch", "--job", str(description), *(["--json"] * as_json)]
        # The ranks end with this process, however it ends. Ctrl-C reaches them by itself.
        with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *line], stdout=subprocess.PIPE) as running:
            job = Training(spec, ())
            try:
                with shown_progress(Console(stderr=True)) as report:
                    while not _ended(running):
                        job.look()
                        report(
                            f"{spec.name}: {job.done}/{spec.iterations} iterations",
                            job.done / spec.iterations,
                        )
            except BaseException:
                running.terminate()
                raise
            assert running.stdout is not None
            click.echo(running.stdout.read(), nl=False)
    context.exit(running.returncode)


def _ended(running: subprocess.Popen[bytes]) -> bool:
    """Wait for a moment, and return whether the process has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(LOOK_S)
        return True
    return False
