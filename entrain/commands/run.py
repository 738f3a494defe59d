"""`entrain run FILE.toml`: bring up a network, run jobs in it, report, and take it down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from machine.errors import EntrainError
from machine.processors import awake

if TYPE_CHECKING:
    from entrain.experiment import Combination, Experiment
    from entrain.results.store import Store
    from entrain.results.values import RunResult
    from entrain.run.plan import Plan
    from entrain.run.runner import Report, Running
    from machine.record import Record


SAY_EVERY_S = 5.0
"""How often progress is printed if there is no terminal."""


@click.command(short_help="Run an experiment, and compare its runs.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write JSON, CSV files and plots to this directory."
)
@click.option("--resume", is_flag=True, help="Keep the completed runs in --out, and run the others.")
@click.option(
    "--only",
    metavar="KEY=VALUE[,VALUE]",
    multiple=True,
    help="Run only these: KEY is routing, policy, congestion_control, load or seed; for slot-rates: trial, "
    "control, slot_ms or flows. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would run, at least how long, and on what.")
@click.option("--json", "as_json", is_flag=True, help="Print results.json instead of the table.")
@click.option("--target", type=click.Choice(["softswitch", "bmv2"]), help="Use this target for all switches.")
@click.option("--seed", type=click.IntRange(min=0), help="Use only this seed.")
@click.option("--keep", is_flag=True, help="After the runs, keep the network up until you press Enter.")
@click.option("--progress", "descriptor", type=int, hidden=True)
def command(
    file: Path,
    out: Path | None,
    resume: bool,
    only: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    target: str | None,
    seed: int | None,
    keep: bool,
    descriptor: int | None,
) -> None:
    """Run the experiment FILE and compare its routings and policies.

    Each run is written to --out when it completes. After an interruption or a failure, the completed runs
    are printed. The same command with --resume runs the others.
    """
    from entrain.doctor import check_network
    from entrain.experiment import load_experiment
    from entrain.results import files, store, tables
    from entrain.run import plan
    from entrain.run.doubts import doubts
    from entrain.run.runner import check_machine
    from entrain.trials.slot_rates import is_slot_rates
    from machine.signals import ending_once
    from machine.terminal import warn

    if resume and out is None:
        raise click.UsageError("--resume continues the runs in a directory; name it with --out")
    console = Console(stderr=True)
    if is_slot_rates(file):
        if target or keep:
            raise click.UsageError(f"--target and --keep: not with {file}, which has no switches")
        _run_slot_rates(file, out, resume, only, dry_run, as_json, seed, console)
        return
    experiment = load_experiment(file, target=target, seed=seed)  # type: ignore[arg-type]
    chosen = plan.chosen(experiment, only)
    for doubt in doubts(file, experiment.topology, experiment.network, experiment.cluster):
        warn(console, doubt)
    if dry_run:
        kept_runs = store.read(files.NETWORK, out).runs if resume and out and store.kind_of(out) else []
        done = {run.combination for run in kept_runs}
        found = plan.plan(experiment, [each for each in chosen if each not in done], len(done))
        if as_json:
            click.echo(json.dumps(found.document(), indent=2))
        else:
            _show_plan(found)
        return
    check_machine(experiment)
    if keep and not sys.stdin.isatty():
        raise click.UsageError("--keep waits for Enter, so it needs a terminal")
    with contextlib.ExitStack() as stack:
        stack.enter_context(ending_once())
        check_network(_features(experiment), experiment.network.shaping)
        kept = (
            stack.enter_context(store.writing(files.NETWORK, out, experiment, resume=resume)) if out else None
        )
        runs = kept.runs if kept else []

        def ended(run: RunResult) -> None:
            if kept is None:
                runs.append(run)
                return
            kept.add(run, files.name(run))
            with store.keeping(kept.directory):
                files.write(kept.directory, experiment, runs)

        done = {run.combination for run in runs}
        todo = [each for each in chosen if each not in done]
        number = len(runs) + len(todo)
        show = partial(_show, experiment, runs, console, as_json)
        with _in_any_case(console, kept, runs, number, show):
            if todo or keep:
                _run(experiment, out, console, descriptor, todo, runs, ended, keep=keep)
        if out is not None:
            with store.keeping(out):
                files.write(out, experiment, runs)
                files.draw(out, experiment, runs)
            console.print(f"results in {out}/: results.json, *.csv, *.png", highlight=False)
        for line in tables.outcome(experiment, runs):
            (console if as_json else Console()).print(line, highlight=False, markup=False)


def _features(experiment: Experiment) -> set[str]:
    """Return what a network of `experiment` needs, of the features that `entrain doctor` tries."""
    from entrain.run.emulation import features
    from hostbpf.mltcp import PLAIN, VARIANTS
    from hostbpf.rates.schedules import PACED

    wanted = features(experiment.topology, experiment.network)
    if "P4 switch" not in wanted:  # both attach programs to interfaces
        wanted.add("link monitor")
    controls = {combination.control for combination in experiment.combinations()}
    if controls & {*VARIANTS, *PLAIN}:
        wanted.add("MLTCP")
    if controls & {*PACED}:
        wanted.add("slots")
    return wanted


def _show_runs(console: Console, parts: Sequence[Mapping[str, Any]], seconds: Sequence[float]) -> None:
    """Print what would run: what distinguishes each run, and how long it takes at least."""
    from machine.terminal import duration, plain_table

    if not parts:
        return
    keys = [key for key in parts[0] if any(part[key] is not None for part in parts)]
    table = plain_table(*keys, "at least", text=len(keys))
    for part, least in zip(parts, seconds, strict=True):
        table.add_row(*("-" if part[key] is None else str(part[key]) for key in keys), duration(least))
    console.print(table)


def _show_plan(found: Plan) -> None:
    from entrain.run.plan import name_parts
    from machine.terminal import count, duration

    console = Console()
    _show_runs(console, [name_parts(run) for run in found.runs], found.run_seconds)
    kept = f", and {found.kept} are kept" if found.kept else ""
    slow = ", so iterations will be slower" if found.processors > found.available else ""
    for line in (
        f"{count(len(found.runs), 'run')}{kept}, on {found.switches} switches and {found.hosts} hosts",
        f"time: at least {duration(found.seconds)} (if no flow met another)",
        f"processors: about {found.processors:.1f} while all jobs send or train at once; "
        f"this machine has {found.available}{slow}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _in_any_case(
    console: Console,
    store: Store[Any, Any] | None,
    runs: Sequence[Any],
    number: int,
    show: Callable[[bool], None],
) -> Iterator[None]:
    """Show the completed `runs` (of `number`) at the end, whether or not the block fails.

    `show` is called with True if it failed.
    """
    failed = True
    try:
        yield
        failed = False
    finally:
        if runs:
            show(failed)
        if failed and number > 1:
            console.print(f"{len(runs)} of {number} runs completed", highlight=False)
            if store is not None and store.runs:
                number_kept = f"{len(store.runs)} of {number} are kept in {store.directory}"
                console.print(f"{number_kept}; --resume runs the others", highlight=False, soft_wrap=True)


def _show(
    experiment: Experiment, runs: Sequence[RunResult], console: Console, as_json: bool, failed: bool
) -> None:
    """Print results as JSON or as tables. After a failure, JSON output is left to the error message."""
    from entrain.results import tables
    from entrain.results.values import document

    if as_json and not failed:
        click.echo(json.dumps(document(experiment, runs), indent=2))
    else:
        tables.show(experiment, runs, console if as_json else Console())
    for remark in tables.remarks(runs):
        console.print(f"note: {remark}", highlight=False)


def _run_slot_rates(
    file: Path,
    out: Path | None,
    resume: bool,
    only: Sequence[str],
    dry_run: bool,
    as_json: bool,
    seed: int | None,
    console: Console,
) -> None:
    """Run an experiment on one host's datapath, without switches or jobs."""
    from entrain.results import store
    from entrain.trials import slot_rates
    from machine.signals import ending_once
    from machine.terminal import duration

    rates = slot_rates.load(file, seed)
    slot_rates.plan(rates, only)  # a wrong choice is refused before anything is written
    if dry_run:
        there = store.read(slot_rates.KIND, out).runs if resume and out and store.kind_of(out) else []
        plan = slot_rates.plan(rates, only, there)
        if as_json:
            click.echo(json.dumps(plan.document(), indent=2))
            return
        console = Console()
        _show_runs(console, plan.parts, plan.run_seconds)
        kept_trials = f", and {plan.kept} are kept" if plan.kept else ""
        text = f"{len(plan.todo)} trials{kept_trials}; time: at least {duration(sum(plan.run_seconds))}"
        console.print(text, highlight=False)
        return
    if os.geteuid() != 0:
        raise EntrainError("run needs namespaces and eBPF; run as root")
    with contextlib.ExitStack() as stack:
        kept = None
        if out is not None:
            kept = stack.enter_context(store.writing(slot_rates.KIND, out, rates, resume=resume))
        results = kept.runs if kept else []

        def show(failed: bool) -> None:
            if as_json and not failed:
                click.echo(json.dumps(slot_rates.document(rates.name, results), indent=2))
            else:
                (console if as_json else Console()).print(slot_rates.table(rates.name, results))

        todo = slot_rates.plan(rates, only, results).todo
        number = len(results) + len(todo)
        with (
            _in_any_case(console, kept, results, number, show),
            ending_once(),
            awake(),
            shown_progress(console) as report,
        ):
            for trial, result in slot_rates.run(rates.trials, report, todo):
                if kept is None:
                    results.append(result)
                    continue
                kept.add(result, f"trial-{trial}")
                with store.keeping(kept.directory):
                    slot_rates.write(kept.directory, rates.name, results)
        if out is not None:
            with store.keeping(out):
                slot_rates.write(out, rates.name, results)
                slot_rates.draw(out / "results.png", rates.name, results)
            console.print(f"results in {out}/: results.json, slots.csv, results.png", highlight=False)


def _run(
    experiment: Experiment,
    out: Path | None,
    console: Console,
    descriptor: int | None,
    todo: Sequence[Combination],
    finished: Sequence[RunResult],
    ended: Callable[[RunResult], None],
    *,
    keep: bool,
) -> None:
    """Bring up the network, run what is in `todo`, and remove everything again.

    `ended` is called with each completed run.
    """
    from entrain.run import cluster, runner

    run_all = cluster.run_all if experiment.cluster else runner.run_all
    parts = list(cluster.networks(experiment))
    parts = [part for part in parts if keep or not set(todo).isdisjoint(part.combinations())]
    with owned_place(console, out, descriptor) as place:
        begun = 0
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            runs = len(set(todo) & set(part.combinations()))
            report = runner.share(place.report, begun / max(len(todo), 1), (begun + runs) / max(len(todo), 1))
            begun += runs
            directory = place.directory / f"network{number}" if len(parts) > 1 else place.directory
            directory.mkdir(exist_ok=True)
            with runner.bring_up(
                part, place.record, directory, place.namespace, report, last=last
            ) as running:
                for run in run_all(running, report, todo, tuple(finished)):
                    ended(run)
                if keep and last:
                    console.print(_how_to_look(running, place.namespace), highlight=False, markup=False)
                    place.report("press Enter to stop", 1.0)
                    running.loop.run(_enter())
                if last:
                    place.ignore_signals()


async def _enter() -> None:
    """Wait for Enter; meanwhile others can watch the network."""
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin)


@dataclass(frozen=True)
class Place:
    """Where a network can be brought up: a namespace and a directory, which `record` owns."""

    record: Record
    directory: Path
    namespace: str
    report: Report
    ignore_signals: Callable[[], None]


@contextlib.contextmanager
def owned_place(console: Console, out: Path | None, descriptor: int | None = None) -> Iterator[Place]:
    """Make a place, and remove everything again. Logs are kept in `out`, progress goes to `descriptor`.

    Resources left by crashed runs are removed first.
    """
    from machine.record import Record, Resource, clean_stale
    from machine.signals import ending_once
    from mininet_topos.isolation import private_namespace

    with (
        ending_once() as ignore_signals,
        Record("run") as record,
        shown_progress(console, descriptor) as report,
    ):
        if stale := clean_stale():
            console.print(f"removed {len(stale)} resources left by a crashed run", highlight=False)
        directory = record.path.with_suffix("")
        record.own(Resource("path", str(directory)))
        directory.mkdir()
        try:
            with private_namespace(record) as namespace:
                yield Place(record, directory, namespace, report, ignore_signals)
        finally:
            ignore_signals()
            if out is not None:
                _save_logs(directory, out / "logs", console)
            clean_stale()  # the records of switches that were killed


@contextlib.contextmanager
def shown_progress(console: Console, descriptor: int | None = None) -> Iterator[Report]:
    """Show progress on one line, or without a terminal, print a line per activity.

    With a `descriptor`, write lines of JSON to it instead.
    """
    from machine.terminal import Remaining, duration

    remaining = Remaining()

    def left(part: float) -> str:
        seconds = remaining.seconds(part)
        return f", {duration(seconds)} left" if seconds is not None and part < 1.0 else ""

    if descriptor is not None:
        with open(descriptor, "w", buffering=1, encoding="utf-8") as pipe:  # noqa: PTH123
            yield lambda what, part: print(json.dumps({"what": what, "part": part}), file=pipe)
        return
    if not console.is_terminal:
        stage, again = "", 0.0

        def say(what: str, part: float) -> None:
            nonlocal stage, again
            rest = left(part)
            if stage != what.partition(":")[0] or time.monotonic() > again:
                stage, again = what.partition(":")[0], time.monotonic() + SAY_EVERY_S
                console.print(f"{part:4.0%} {what}{rest}", highlight=False, soft_wrap=True)

        yield say
        return
    columns = (SpinnerColumn(), BarColumn(30), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=f"{what}{left(part)}", completed=part)


def _how_to_look(running: Running, namespace: str) -> str:
    switch, host = running.experiment.topology.switches[0], running.experiment.topology.hosts[0]
    return (
        f"The network is up.\n"
        f"  switches: ip netns exec {namespace} tcpdump -i {switch.interface(1)}\n"
        f"  hosts: nsenter -t {running.network.net[host.name].pid} -n ip address    (that is {host.name})\n"
        f"  P4Runtime of {switch.name}, in the namespace {namespace}: {switch.grpc_address}"
    )


def _save_logs(directory: Path, logs: Path, console: Console) -> None:
    """Copy the switches' and workers' logs to `logs`; print a note if they cannot be written."""
    try:
        for log in sorted(directory.rglob("*.log")):
            kept = logs / log.relative_to(directory)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
    except OSError as error:
        console.print(f"note: logs could not be kept: {error.strerror}", highlight=False, markup=False)
