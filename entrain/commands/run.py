"""`entrain run FILE.toml`: bring up a network, run jobs in it, report, tear down."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from machine.errors import EntrainError

if TYPE_CHECKING:
    from entrain.experiment import Experiment
    from entrain.results.values import RunResult
    from entrain.runner import Report, Running


SAY_EVERY_S = 5.0
"""How often progress is printed where there is no terminal."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write JSON, CSV and plot there."
)
@click.option("--json", "as_json", is_flag=True, help="Print results.json instead of the table.")
@click.option("--target", type=click.Choice(["softswitch", "bmv2"]), help="Use this switch for all.")
@click.option("--seed", type=click.IntRange(min=0), help="Use this seed only.")
@click.option("--keep", is_flag=True, help="Leave the network up after the runs, until you press Enter.")
def command(
    file: Path, out: Path | None, as_json: bool, target: str | None, seed: int | None, keep: bool
) -> None:
    """Run the experiment FILE and compare its routings and policies."""
    from entrain.experiment import load_experiment
    from entrain.results import tables as report
    from entrain.results.values import document, summarized
    from entrain.slot_rates import is_slot_rates
    from mininet_topos.network import check_possible

    if is_slot_rates(file):
        _run_slot_rates(file, out, as_json, seed)
        return
    experiment = load_experiment(file, target=target, seed=seed)  # type: ignore[arg-type]
    check_possible(experiment.topology, experiment.network.shaping)
    if keep and not sys.stdin.isatty():
        raise click.UsageError("--keep waits for Enter: it needs a terminal")
    console = Console(stderr=True)
    results = _run(experiment, out, console, keep=keep)
    if out is not None:
        from entrain.results.plots import plot

        report.write(out, experiment, results)
        plot(out / "results.png", experiment, results)
        if report.has_delays(results):
            from entrain.results import overhead

            report.write_delays(out, results)
            overhead.plot(out / "overhead.png", experiment, results)
        if experiment.sample_ms is not None:
            from entrain.results import timelines

            report.write_samples(out, results)
            timelines.plot(out, experiment, results)
    if as_json:
        click.echo(json.dumps(document(experiment, results), indent=2))
    else:
        output = Console()
        output.print(report.table(experiment, results))
        output.print(report.LEGEND)
        if len(experiment.jobs) > 1 and len(summarized(results)) > 1:
            output.print(report.completion(results))
            output.print(report.COMPLETION_LEGEND)
        if experiment.controls:
            output.print(report.settling(results))
            output.print(report.SETTLING_LEGEND)
    for remark in report.remarks(results):
        console.print(f"note: {remark}", highlight=False)
    if out is not None:
        console.print(f"results in {out}/: results.json, *.csv, *.png", highlight=False)


def _run_slot_rates(file: Path, out: Path | None, as_json: bool, seed: int | None) -> None:
    """An experiment on one host's datapath: no switches, no jobs."""
    from entrain import slot_rates
    from machine.signals import ending_once

    name, trials = slot_rates.load(file, seed)
    if os.geteuid() != 0:
        raise EntrainError("run needs namespaces and eBPF: run as root")
    console = Console(stderr=True)
    with ending_once(), _progress(console) as report:
        results = slot_rates.run(trials, report)
    if out is not None:
        slot_rates.write(out, name, results)
        console.print(f"results in {out}/: results.json, slots.csv, results.png", highlight=False)
    if as_json:
        click.echo(json.dumps(slot_rates.document(name, results), indent=2))
    else:
        Console().print(slot_rates.table(name, results))


def _run(experiment: Experiment, out: Path | None, console: Console, *, keep: bool) -> list[RunResult]:
    """Everything that touches the machine: from removing what crashes left to removing what we made."""
    from entrain.runner import bring_up, run_all
    from machine.record import RECORDS, Record, Resource, clean_stale
    from machine.signals import ending_once
    from mininet_topos.isolation import private_namespace

    with ending_once() as ignore_signals, Record("run") as record, _progress(console) as report:
        if stale := clean_stale():
            console.print(f"removed {len(stale)} things that a crashed run had left", highlight=False)
        directory = RECORDS / f"run-{os.getpid()}"
        record.own(Resource("path", str(directory)))
        directory.mkdir()
        try:
            with (
                private_namespace(record) as namespace,
                bring_up(experiment, record, directory, namespace, report) as running,
            ):
                results = run_all(running, report)
                if keep:
                    console.print(_how_to_look(running, namespace), highlight=False, markup=False)
                    report("Enter ends it", 1.0)
                    sys.stdin.readline()
                ignore_signals()
        finally:
            ignore_signals()
            if out is not None:
                _save_logs(directory, out / "logs")
            clean_stale()  # the records of switches that were killed
    return results


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """A line that shows what is going on; where there is no terminal, a line for each thing."""
    if not console.is_terminal:
        stage, again = "", 0.0

        def say(what: str, part: float) -> None:
            nonlocal stage, again
            if stage != what.partition(":")[0] or time.monotonic() > again:
                stage, again = what.partition(":")[0], time.monotonic() + SAY_EVERY_S
                console.print(f"{part:4.0%} {what}", highlight=False, soft_wrap=True)

        yield say
        return
    columns = (SpinnerColumn(), BarColumn(30), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=what, completed=part)


def _how_to_look(running: Running, namespace: str) -> str:
    switch, host = running.experiment.topology.switches[0], running.experiment.topology.hosts[0]
    return (
        f"The network is up.\n"
        f"  switches: ip netns exec {namespace} tcpdump -i {switch.interface(1)}\n"
        f"  hosts: nsenter -t {running.network.net[host.name].pid} -n ip address    (that is {host.name})\n"
        f"  P4Runtime of {switch.name}, in the namespace {namespace}: {switch.grpc_address}"
    )


def _save_logs(directory: Path, logs: Path) -> None:
    """Keep the switches' and workers' logs."""
    for log in sorted(directory.rglob("*.log")):
        kept = logs / log.relative_to(directory)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)
