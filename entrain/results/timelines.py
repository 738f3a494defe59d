"""Pictures of an experiment over time: how iterations settle, how the jobs' bursts slide apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from entrain.cross import NAME as CROSS
from entrain.experiment import Experiment, Policy
from entrain.results.plots import COLOURS, count, name
from entrain.results.values import WINDOW, RunResult, Summarized, converged_at, summarized

SHOWN = 4
"""Iterations in each part of the picture of throughput."""

SLIDING = 6
"""The iteration at which its middle part begins: MLTCP has learned, and the jobs are sliding apart."""

_COLOURS = dict(zip(get_args(Policy), COLOURS, strict=False))


def plot(directory: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """`iterations.png`, `throughput.png` and, with several seeds, `seeds.png` in `directory`."""
    _save(directory / "iterations.png", _iterations(experiment, runs))
    first = [run for run in runs if run.combination.seed == runs[0].combination.seed]
    _save(directory / "throughput.png", _throughput(experiment, first))
    if len({run.combination.seed for run in runs}) > 1:
        _save(directory / "seeds.png", _seeds(experiment, runs))


def _save(path: Path, figure: Any) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)


def family(run: RunResult) -> str:
    """The congestion control of which a run's is the kernel's, the copy in eBPF, or a variant: that of MLTCP,
    or that of the slot scheduler."""
    return re.sub("^(bpf|mltcp|slot)_", "", str(run.combination.control))


def _name(run: RunResult) -> str:
    return name(run.combination)


def _iterations(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """A panel for each family: a line for each run, the mean of its jobs; with one seed their range, too."""
    families = list(dict.fromkeys(map(family, runs)))
    figure, axes = plt.subplots(
        1,
        len(families),
        figsize=(max(6.5, 3.6 * len(families) + 1), 3.8),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    seeds = len({run.combination.seed for run in runs})
    figure.suptitle(
        f"{experiment.name}: iteration time, mean of {count(len(experiment.jobs), 'job')}, "
        + (f"{seeds} seeds" if seeds > 1 else "and their range"),
        fontsize=11,
    )
    for place, each in zip(axes[0], families, strict=True):
        shown = set()
        for run in (run for run in runs if family(run) == each):
            colour = _COLOURS[run.combination.policy]
            times = _times(run)
            numbers = np.arange(times.shape[1])
            label = _name(run) if _name(run) not in shown else None
            shown.add(_name(run))
            place.plot(numbers, times.mean(axis=0), color=colour, lw=1.2, label=label)
            if seeds == 1:
                place.fill_between(
                    numbers, times.min(axis=0), times.max(axis=0), color=colour, alpha=0.25, lw=0
                )
                if (settled := converged_at(run)) is not None:
                    place.axvline(settled, color=colour, ls=":", lw=1)
        ideal = next(run for run in runs if family(run) == each).jobs[0].ideal_ms
        place.axhline(ideal, color="black", ls="--", lw=1, label="alone on the link")
        place.set_title(each)
        place.set_xlabel("iteration")
        place.grid(alpha=0.3)
        place.legend(loc="lower right", fontsize=8)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("iteration time (ms)")
    return figure


def _times(run: RunResult) -> Any:
    """Iteration times (ms), of shape (jobs, iterations)."""
    shortest = min(len(job.summary.iteration_ms) for job in run.jobs)
    return np.array([job.summary.iteration_ms[:shortest] for job in run.jobs])


def _throughput(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """A row for each run: throughput on the busiest link at the beginning, a little later, and at the end;
    all of it where iterations are few."""
    last = min(_times(run).shape[1] for run in runs)
    parts: tuple[int | None, ...] = (0, SLIDING, last - SHOWN) if last > 3 * SHOWN else (None,)
    figure, axes = plt.subplots(
        len(runs),
        len(parts),
        figsize=(13, 1.5 * len(runs) + 1),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(f"{experiment.name}: throughput of each job on {_busiest(runs[0])}")
    jobs = [job.name for job in experiment.jobs] + [CROSS] * bool(experiment.cross)
    for row, run in zip(axes, runs, strict=True):
        summary = run.jobs[0].summary
        starts = np.cumsum([0.0, *summary.iteration_ms]) / 1e3
        starts *= (summary.jct_s or starts[-1]) / starts[-1]  # ranks begin the next iteration one by one
        for place, first in zip(row, parts, strict=True):
            for job, colour in zip(jobs, COLOURS, strict=False):
                for each in run.timeline.throughput:
                    if (each.link, each.job) == (_busiest(runs[0]), job):
                        times = np.arange(len(each.mbps)) * each.bin_ms / 1e3
                        place.fill_between(times, each.mbps, step="post", color=colour, alpha=0.45, lw=0)
                        place.step(times, each.mbps, where="post", color=colour, lw=0.7, label=job)
            if first is None:
                place.margins(x=0)
            else:
                place.set_xlim(starts[first], starts[first + SHOWN])
            place.grid(alpha=0.3)
        row[0].set_ylabel(f"{_name(run)}\nMbit/s", fontsize=9)
    for place, first in zip(axes[0], parts, strict=True):
        if first is not None:
            place.set_title(f"iterations {first} to {first + SHOWN - 1}", fontsize=10)
    axes[0, 0].set_ylim(bottom=0)
    if handles := axes[0, 0].get_legend_handles_labels()[0]:
        figure.legend(handles=handles, loc="outside lower center", fontsize=8, ncols=len(jobs))
    for place in axes[-1]:
        place.set_xlabel("time (s)")
    return figure


def _busiest(run: RunResult) -> str:
    return max(run.links, key=lambda link: link.bytes).link


def _seeds(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """How many of the seeds have converged by each iteration, and where they end up."""
    groups = summarized(runs)
    figure, (when, where) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    figure.suptitle(f"{experiment.name}: {len({run.combination.seed for run in runs})} seeds")
    longest = max(_times(run).shape[1] for run in runs)
    for group, colour in zip(groups, COLOURS, strict=False):
        at = sorted(each for each in group.converged_at if each is not None)
        steps = [0, *at, longest]
        shares = [*range(len(at) + 1), len(at)]
        when.step(
            steps, np.array(shares) / len(group.runs), where="post", color=colour, label=_name(group.runs[0])
        )
        _dots(where, groups, group, colour)
    when.set_ylim(0, 1.03)
    when.set_xlabel("iteration")
    when.set_ylabel("share of the seeds that have converged")
    when.legend(loc="lower right", fontsize=8)
    where.axhline(1, color="black", ls="--", lw=1)
    where.set_xticks(range(len(groups)), [_name(group.runs[0]) for group in groups])
    where.set_ylabel(f"last {WINDOW} iterations over ideal")
    for place in (when, where):
        place.grid(alpha=0.3)
    return figure


def _dots(axes: Any, groups: Sequence[Summarized], group: Summarized, colour: str) -> None:
    """A dot for each seed."""
    axes.plot([groups.index(group)] * len(group.runs), group.over_ideal(WINDOW), "o", color=colour, alpha=0.6)
