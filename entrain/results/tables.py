"""Tables of results for people, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from entrain.experiment import Experiment
from entrain.results.values import (
    CONVERGED,
    HELD,
    LEARNING,
    SETTLED_LEAST,
    WINDOW,
    RunResult,
    best_tcp_jct_s,
    fairness,
    losses_equal,
    summarized,
)

LEGEND = """mean, p99: iteration time, over all iterations. flows: the most on one link
of the fabric at once, measured there: of the job in one step of its
collective, and of all jobs"""

BUSY_LIMIT = 0.9
"""Above this the processors, and not the emulated links, may have set the pace."""


def label(run: RunResult, runs: Sequence[RunResult]) -> str:
    """What tells `run` from the others."""
    combination = run.combination
    parts: list[str] = []
    if len({other.combination.routing for other in runs}) > 1:
        parts.append(combination.routing)
    if len({other.combination.policy for other in runs}) > 1:
        parts.append(combination.policy)
    if len({other.combination.control for other in runs}) > 1:
        parts.append(str(combination.control))
    if len({other.combination.seed for other in runs}) > 1:
        parts.append(f"seed {combination.seed}")
    return ", ".join(parts) or combination.routing


def table(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """One line per job and run, and per run the most flows on one link at one time. Fits 80 columns."""
    result = Table(
        title=f"{experiment.name} on {experiment.target}",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("run", "job", "collective"):
        result.add_column(heading, overflow="fold")
    for heading in ("mean\nms", "p99\nms", "×\nideal", "JCT\ns", "flows:\njob", "\nall"):
        result.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        for job in run.jobs:
            first = job is run.jobs[0]
            result.add_row(
                label(run, runs) if first else "",
                job.name,
                job.summary.collective,
                f"{job.mean_ms:.1f}",
                f"{job.summary.iteration_ms_p99:.1f}",
                f"{job.ratio_to_ideal:.2f}",
                f"{job.summary.jct_s:.2f}",
                str(job.max_flows_per_link),
                str(run.max_flows_per_link_all) if first else "",
                end_section=job is run.jobs[-1],
            )
    return result


COMPLETION_LEGEND = """JCT: job completion time, s, over the jobs (of all seeds). against TCP: the mean
against the shortest mean of a plain TCP (policy none) above"""


def completion(runs: Sequence[RunResult]) -> Table:
    """Completion times over the jobs (figure 8 and table I of the flow-scheduling paper): a line for all
    seeds of a routing, policy and congestion control, and how it compares with the best plain TCP."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    best = best_tcp_jct_s(runs)
    for heading in ("routing", "policy", "control"):
        result.add_column(heading)
    for heading in ("JCT\nmean", "\nmin", "\nmax", "\np99", "against\nTCP"):
        result.add_column(heading, justify="right", no_wrap=True)
    for group in summarized(runs):
        which = group.runs[0].combination
        result.add_row(
            *(which.routing, which.policy, str(which.control or "")),
            *(f"{value:.2f}" for value in group.completion.document().values()),
            f"{group.completion.mean / best - 1:+.1%}" if best else "-",
        )
    return result


SETTLING_LEGEND = f"""settled: from iteration {LEARNING} on, the mean over ideal and over the links' bound,
and p99 over ideal, of n iterations; -: fewer than {SETTLED_LEAST}. converged: runs that from
some iteration on (median) keep within {CONVERGED - 1:.0%} of ideal until the end, in any {WINDOW}
in a row of every job, {HELD} at least. Of the whole run: slowest, the progress
of the slowest job (1: unhindered), and Jain's index (1: even)"""


def settling(runs: Sequence[RunResult]) -> Table:
    """One line for all seeds of a policy and congestion control: whether, when and where it settled."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("policy")
    result.add_column("control")
    headings = ("settled\n× ideal", "\n× bound", "\np99", "\nn", "con-\nverged", "\nat", "slowest", "Jain")
    for heading in headings:
        result.add_column(heading, justify="right", no_wrap=True)
    routings = len({run.combination.routing for run in runs})
    for group in summarized(runs):
        which = group.runs[0].combination
        at = [each for each in group.converged_at if each is not None]
        even = [fairness(run) for run in group.runs]
        figures = group.settled
        result.add_row(
            f"{which.routing}, {which.policy}" if routings > 1 else which.policy,
            str(which.control),
            f"{figures.over_ideal:.3f}" if figures else "-",
            f"{figures.over_bound:.3f}" if figures else "-",
            f"{figures.over_ideal_p99:.3f}" if figures else "-",
            str(figures.iterations) if figures else "-",
            f"{len(at)}/{len(group.runs)}",
            f"{median(at):g}" if at else "-",
            f"{min(each.slowest for each in even):.2f}",
            f"{fmean(each.jain for each in even):.3f}",
        )
    return result


def show(experiment: Experiment, runs: Sequence[RunResult], console: Console) -> None:
    """Print all tables that say something about `runs`, and what to read them by."""
    console.print(table(experiment, runs))
    console.print(LEGEND)
    if len(experiment.jobs) > 1 and len(summarized(runs)) > 1:
        console.print(completion(runs))
        console.print(COMPLETION_LEGEND)
    if experiment.controls:
        console.print(settling(runs))
        console.print(SETTLING_LEGEND)


def remarks(runs: Sequence[RunResult]) -> Iterable[str]:
    """What limits the meaning of these results."""
    busiest = max(run.overhead["processor_busy"] for run in runs)
    if busiest > BUSY_LIMIT:
        yield (
            f"the processors were {busiest:.0%} busy: part of these times is theirs, not the network's; "
            f"use lower rates (rate_mbps), or a machine with more processors"
        )
    if (equal := losses_equal(runs)) is not None:
        yield (
            "the losses of the jobs that train are the same, bit for bit, in all runs of a seed"
            if equal
            else "losses differ between runs of a seed: the network has changed what was trained"
        )
    if any(run.overhead["unattributed_bytes"] for run in runs):
        yield "some traffic on the fabric's links belongs to no job; see overhead.unattributed_bytes"
