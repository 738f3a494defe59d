"""A run's results for people and for programs: a table, `results.json`, CSV files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from entrain.experiment import Experiment
from entrain.results.values import (
    CONVERGED,
    LAST,
    WINDOW,
    RunResult,
    best_tcp_jct_s,
    document,
    fairness,
    identity,
    losses_equal,
    over_bound_last,
    summarized,
)

LEGEND = """mean, p99: iteration time. flows: the most on one link of the fabric at once,
measured there: of the job in one step of its collective, and of all jobs"""

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


SETTLING_LEGEND = f"""last: mean of the last {LAST} iterations over ideal, and over what the rates allow.
converged: runs of which {WINDOW} iterations in a row came within {CONVERGED - 1:.0%} of ideal, from
which on (median). slowest: progress of the slowest job, 1 is unhindered;
Jain: 1 is even"""


def settling(runs: Sequence[RunResult]) -> Table:
    """One line for all seeds of a policy and congestion control: whether, when and where it settled."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("policy")
    result.add_column("control")
    for heading in ("last\n× ideal", "\n× rate", "con-\nverged", "\nat", "slowest", "Jain"):
        result.add_column(heading, justify="right", no_wrap=True)
    for group in summarized(runs):
        at = [each for each in group.converged_at if each is not None]
        even = [fairness(run) for run in group.runs]
        result.add_row(
            group.runs[0].combination.policy,
            str(group.runs[0].combination.control),
            f"{fmean(group.over_ideal()):.3f}",
            f"{fmean(map(over_bound_last, group.runs)):.3f}",
            f"{len(at)}/{len(group.runs)}",
            f"{median(at):g}" if at else "-",
            f"{min(each.slowest for each in even):.2f}",
            f"{fmean(each.jain for each in even):.3f}",
        )
    return result


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


def write(directory: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """`results.json`, `jobs.csv`, `iterations.csv` and `links.csv` in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    results = document(experiment, runs)
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    jobs, links = [], []
    for run, values in zip(runs, results["runs"], strict=True):
        for job in values["jobs"]:
            jobs.append({**identity(run), **job, "hosts": " ".join(job["hosts"])})
        links += [{**identity(run), **link} for link in values["links"]]
    _write_csv(directory / "jobs.csv", jobs)
    _write_csv(directory / "links.csv", links)
    _write_csv(
        directory / "iterations.csv",
        [
            {
                **identity(run),
                "job": job.name,
                "iteration": number,
                "iteration_ms": iteration,
                "communication_ms": communication,
                "loss": fmean(job.summary.losses[number]) if job.summary.losses else None,
            }
            for run in runs
            for job in run.jobs
            for number, (iteration, communication) in enumerate(
                zip(job.summary.iteration_ms, job.summary.communication_ms, strict=True)
            )
        ],
    )


def has_delays(runs: Sequence[RunResult]) -> bool:
    """Whether an agent said how long something took."""
    return any(host.negotiation_ms or host.decision_ms for run in runs for host in run.scheduling)


def write_delays(directory: Path, runs: Sequence[RunResult]) -> None:
    """`delays.csv` in `directory`: how long the agents' negotiations and decisions took."""
    _write_csv(
        directory / "delays.csv",
        [
            {**identity(run), "host": host.host, "kind": kind, "seconds": milliseconds / 1e3}
            for run in runs
            for host in run.scheduling
            for kind, delays in (("negotiation", host.negotiation_ms), ("decision", host.decision_ms))
            for milliseconds in delays
        ],
    )


def write_samples(directory: Path, runs: Sequence[RunResult]) -> None:
    """`throughput.csv` and `windows.csv` in `directory`: what was sampled during the runs."""
    _write_csv(
        directory / "throughput.csv",
        [
            {
                **identity(run),
                "link": each.link,
                "job": each.job,
                "time_s": round(place * each.bin_ms / 1e3, 6),
                "mbps": round(mbps, 3),
            }
            for run in runs
            for each in run.timeline.throughput
            for place, mbps in enumerate(each.mbps)
        ],
    )
    _write_csv(
        directory / "windows.csv",
        [{**identity(run), **asdict(each)} for run in runs for each in run.timeline.windows],
    )


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
