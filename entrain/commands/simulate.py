"""`entrain simulate NAME`: run the papers' experiments in the flow-level simulator."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from machine.errors import BadInput, EntrainError
from machine.processors import share_memory
from machine.signals import ending_once
from machine.terminal import count, plain_table, print_whole

if TYPE_CHECKING:
    from simulation.results import Placed, Summary

SCORE = "cassini-score"
"""The NAME that runs no experiment, but scores the jobs of a file."""


@click.command(short_help="Simulate an experiment, without a network.")
@click.argument("name")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Trace file. Default: the included trace, or a workload drawn from a public trace's distributions.",
)
@click.option(
    "--scale-trace",
    is_flag=True,
    help="For vclos-...: take only sizes and durations from the trace, repeated as needed; scale the "
    "durations to the experiment's mean, and draw the arrivals. Default: the trace's jobs as they are.",
)
@click.option("--policy", help="Run only these policies, separated by commas.")
@click.option(
    "--limit",
    type=int,
    help="Use only the first N jobs or coflows; for mltcp-two-jobs, cassini-... and matrix, N iterations.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random choices.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write results to this directory. Completed points in it are not run again.",
)
@click.option(
    "--flows", is_flag=True, help="Also write each flow's completion time to flows.csv (needs --out)."
)
@click.option(
    "--usage",
    type=float,
    metavar="SECONDS",
    help="Write each link's utilisation over time to usage.csv and usage.png, in bins of SECONDS "
    "(needs --out).",
)
@click.option("--workers", type=int, help="Number of parallel processes. Default: all cores.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "dask"]),
    default="local",
    show_default=True,
    help="Where the points of a sweep run.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="For cassini-score: TOML file of the jobs' profiles and of the links that they share.",
)
@click.option(
    "--threshold",
    type=float,
    help="For cassini-score: least score of a link for which its jobs are shifted (0.7).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(
    context: click.Context,
    name: str,
    trace: Path | None,
    scale_trace: bool,
    policy: str | None,
    limit: int | None,
    seed: int,
    out: Path | None,
    flows: bool,
    usage: float | None,
    workers: int | None,
    engine: str,
    profiles: Path | None,
    threshold: float | None,
    as_json: bool,
) -> None:
    """Simulate experiment NAME (parrot-jct, parrot-readings, parrot-scale, parrot-eta, parrot-theta,
    parrot-load, parrot-ps, parrot-live, slots-jct, slots-models, slots-tau, slots-bound, slots-load,
    slots-latency, coflow-fb2010, mltcp-two-jobs, cassini-unfairness, cassini-timeline, cassini-snapshots,
    cassini-themis, cassini-pollux, matrix, pollux-jct, vclos-512, vclos-2048, vclos-load, vclos-order,
    vclos-communication, vclos-tpu, vclos-shape, vclos-sizes, vclos-share, vclos-testbed, vclos-hash), or
    find out how well the jobs of a file fit together (cassini-score, with --profiles; docs/cassini.md
    describes the file and the output).

    \b
    Files in --out and their columns. Columns for the parameters that the
    experiment varies (policy, gbps, ...) follow.
      summary.json  totals per point, decision latency, the paper's claims
      rows.csv      the same in long form: one row per value
      jobs.csv      job, arrival_s, jct_s, waiting_s (with bytes to send, but
                    sending none; for vclos-...: in the queue; for pollux-jct:
                    without a GPU), lower_bound_s (alone in the network; for
                    pollux-jct: on the GPUs that suit it best)
      coflows.csv   coflow, arrival_s, cct_s, bytes
      flows.csv     with --flows: coflow, src, dst (hosts), bytes, arrival_s, fct_s
      rates.csv     for cassini-timeline: job, time_s, gbit_s; iterations.csv: job,
                    iteration, iteration_s
      usage.csv     with --usage: time_s (start of the bin), link,
                    utilisation (mean fraction of its capacity, 0 to 1),
                    capacity_gbit_s
    NAME.png and usage.png are the plots. If pyarrow is installed, each .csv
    file has a .parquet file with the same columns.

    \b
    The papers call three policies of parrot-... and coflow-fb2010 Aalo:
      aalo        a job's coflows count as one, least bytes sent first (Parrot's
                  evaluation)
      d-clas-job  a job's coflows count as one, in D-CLAS queues (Parrot's
                  description)
      d-clas      each coflow counts alone, in D-CLAS queues (Aalo's paper)
    """
    # Import late: the simulator loads numpy and numba, which would slow down `entrain --help`.
    from entrain.results.claimed import values_of
    from schedulers.compiled import cached
    from simulation import output, sweep
    from simulation.experiments.experiment import Point
    from simulation.experiments.registry import points

    if name == SCORE:
        _score(context, profiles, threshold, seed, as_json)
        return
    if profiles is not None or threshold is not None:
        raise BadInput(f"--profiles and --threshold belong to {SCORE}; leave them out")
    if workers is not None and workers < 1:
        raise BadInput(f"--workers is {workers}; give at least 1")
    if out is None and (flows or usage is not None):
        raise BadInput("--flows and --usage write files; give --out DIR")
    experiment, todo = points(
        name, trace, policy, limit, seed, flow_times=flows, usage_s=usage, scaled=scale_trace
    )
    if out is not None:
        _check_writable(out)
    console = Console(stderr=True)
    if experiment.trace is not None and experiment.trace.path is None and trace is None:
        console.print(
            f"note: the workload is drawn at random from the distributions of {experiment.trace.origin}; "
            "entrain does not include that file; to use it, download it and give it with --trace",
            highlight=False,
        )
    if not cached():
        console.print(
            "note: the cache ($XDG_CACHE_HOME, or ~/.cache) cannot be written, so each run compiles "
            "its kernels anew; set XDG_CACHE_HOME to a directory that can",
            highlight=False,
        )
    if workers is None and not share_memory():
        console.print(
            "note: /dev/shm cannot be used, which parallel processes need, so one worker simulates; mount it "
            "writable: mount -t tmpfs tmpfs /dev/shm",
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
                    f"interrupted; completed points are kept in {out}; the same command continues from there"
                )
            raise
        except OSError as error:
            raise _unwritable(error, out) from error
    summary = output.summarise(experiment, todo, results, values_of(experiment.name))
    if out is not None:
        try:
            output.write(out, summary, results)
        except OSError as error:
            raise _unwritable(error, out) from error
    if as_json:
        click.echo(json.dumps(summary.document()))
    else:
        _print(summary)


def _check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadInput(
            f"--out {out}: cannot be written ({error.strerror}); give another directory"
        ) from error


def _unwritable(error: OSError, out: Path | None) -> EntrainError:
    kept = f"; completed points are kept in {out}, and the same command continues from there" if out else ""
    return EntrainError(f"{error.filename or out}: {error.strerror}{kept}")


def _score(
    context: click.Context, profiles: Path | None, threshold: float | None, seed: int, as_json: bool
) -> None:
    from entrain.interleaving import document, show
    from schedulers.cassini.affinity import THRESHOLD

    others = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("name", "profiles", "threshold", "seed", "as_json")
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if others:
        raise BadInput(f"{SCORE} runs no experiment; leave out {', '.join(others)}")
    if profiles is None:
        raise BadInput(f"{SCORE} needs a file of profiles; give it with --profiles")
    if seed < 0:
        raise BadInput(f"--seed is {seed}; give at least 0")
    if threshold is not None and not threshold <= 1.0:
        raise BadInput(f"--threshold is {threshold}; no score is above 1")
    result = document(profiles, THRESHOLD if threshold is None else threshold, seed)
    if as_json:
        click.echo(json.dumps(result))
    else:
        show(result, Console())


def _print(summary: Summary) -> None:
    from entrain.results.claimed import judged_of
    from simulation.rows import rows

    console = Console()
    print_whole(summary_table(summary))
    settings = vars(summary.settings)
    if settings["trace"]:
        scaling = [
            f"{key.replace('_', ' ')}: {settings[key]:g}"
            for key in ("iteration_scale", "arrival_scale", "duration_s")
            if settings[key]
        ]
        sizes = {row.at.sizes for row in summary.points} - {None}
        words = "; ".join([f"trace: {settings['trace']}", *(f"sizes: {each}" for each in sizes), *scaling])
        console.print(words, highlight=False, soft_wrap=True)
    console.print(summary_legend(summary), highlight=False)
    for line in placements(summary):
        console.print(line, highlight=False)
    if beside := judged_of(summary.experiment, rows(summary)):
        claims = plain_table("claim", "paper", "here", "reproduced?", text=4)
        for each in beside:
            claims.add_row(each.claim.text, each.claim.value, each.here, each.verdict)
        print_whole(claims)


_SHOWN = (
    "total_jct_s",
    "mean_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "mean_cct_s",
    "p95_cct_s",
    "mean_jrt_s",
    "mean_jwt_s",
    "mean_slowdown",
    "published_jct_s",
    "mean_restarts",
    "fragmentation_network",
    "lower_bound_s",
    "mean_iteration_s",
    "p99_iteration_s",
    "max_iteration_s",
    "best_iteration_s",
    "mean_to_best",
    "mean_to_alone",
    "p99_to_alone",
    "slowest_to_alone",
    "marks_per_iteration",
    "mean_flows",
)
"""The figures in the table, by their names in `simulation.results`."""


_MEANS = {
    "total_jct_s": "sum of the jobs' completion times",
    "mean_jct_s": "job completion time, mean over jobs of all lengths",
    "p99_jct_s": "its 99th percentile",
    "mean_cct_s": "coflow completion time, mean",
    "p95_cct_s": "its 95th percentile",
    "mean_jrt_s": "job running time, mean over jobs of all lengths",
    "mean_jwt_s": "job waiting time",
    "mean_slowdown": "running time over that with links of its own",
    "published_jct_s": "mean that the authors' simulator reports",
    "mean_restarts": "how often a job got other GPUs",
    "fragmentation_network": "failed attempts to place a job for want of links",
    "lower_bound_s": "total if each job were alone in the network",
    "best_iteration_s": "lower bound of the period in which all jobs complete an iteration",
    "mean_to_best": "mean iteration over that bound",
    "mean_to_alone": "iteration time over that alone in the network, mean",
    "p99_to_alone": "its 99th percentile",
    "slowest_to_alone": "the same of the slowest job",
    "marks_per_iteration": "packets of a job marked by ECN in an iteration",
    "mean_flows": "flows on the most used link of a flow",
}
"""What the figures in the table mean."""
_VARIANTS = {
    "slots-horizon": "plans the whole horizon, as Algorithm 1 is printed; slots plans the first slots of it",
}
"""What policies are, beside their names."""


def summary_legend(summary: Summary) -> str:
    """Return what the columns of the table mean, with their units."""
    from simulation.results import LABELS

    keys, values = _columns(summary)
    policies = {row.at.policy for row in summary.points}
    parts = [
        *(
            f"{key.replace('_', ' ')}: {LABELS[key]}"
            for key in keys
            if LABELS.get(key, key).lower() != key.replace("_", " ")
        ),
        *(f"{key.replace('_', ' ')}: {_MEANS[key]}" for key in values if key in _MEANS),
        *(f"{name}: {what}" for name, what in _VARIANTS.items() if name in policies),
    ]
    return fill(". ".join(parts), 80)


def placements(summary: Summary) -> Iterator[str]:
    """Yield for each policy how many placements of jobs shared a link, and how many of them were paced."""
    from simulation.results import TrainingTimes

    placed: dict[str, list[Placed]] = {}
    for row in summary.rows(TrainingTimes):
        if row.figures.placed is not None:
            placed.setdefault(row.at.policy, []).append(row.figures.placed)
    for policy, counts in placed.items():
        jobs, sharing, paced, shifted = (
            sum(getattr(each, name) for each in counts) for name in ("jobs", "sharing", "paced", "shifted")
        )
        paces = f", {paced} are paced, {shifted} shifted" if policy.endswith("-cassini") else ""
        yield f"{policy}: of {count(jobs, 'placement')} of a job, {sharing} share a link{paces}"


def _columns(summary: Summary) -> tuple[list[str], list[str]]:
    """Return the parameters and the figures that the table shows, by their names in `simulation.results`."""
    from simulation.results import TrainingTimes

    keys = [
        name
        for name in summary.parameters
        if name == "policy" or len({str(row.at.given().get(name)) for row in summary.points}) > 1
    ]
    if isinstance(summary.points[0].figures, TrainingTimes):  # the rest has no room beside its parameters
        return keys, ["mean_to_alone", "p99_to_alone", "marks_per_iteration"]
    first = vars(summary.points[0].figures)
    # Completion times of single coflows say little about a training job that consists of several.
    hidden = "_cct_" if first.get("mean_cct_s") != first.get("mean_jct_s") else "_jct_"
    jobs = (summary.limit or summary.settings.jobs or 100) * (summary.settings.draws or 1)
    return keys, [
        name
        for name in _SHOWN
        if first.get(name) is not None
        and (hidden not in name or name == "total_jct_s")
        and (name != "p99_jct_s" or jobs >= 100)  # fewer have none
    ]


def summary_table(summary: Summary) -> Table:
    """Return a table with one row per point of an experiment."""
    rows = [(row.at.given(), vars(row.figures)) for row in summary.points]
    first = rows[0][1]
    keys, values = _columns(summary)
    decided = ["decision p99 µs"] if first.get("decision") else []
    headings = [heading.replace("_", "\n") for heading in (*keys, *values)]
    headings += [heading.replace(" ", "\n") for heading in decided]
    table = plain_table(*headings, text=len(keys))
    table.title = summary.title
    for at, figures in rows:
        cells = [str(at.get(k, "-")) for k in keys] + [
            f"{figures[k]:.0f}" if figures[k] >= 1000 else f"{figures[k]:.4g}" for k in values
        ]
        if decided:
            decision = figures["decision"]
            cells.append(f"{decision.p99_us:.0f}" if decision else "-")
        table.add_row(*cells)
    return table
