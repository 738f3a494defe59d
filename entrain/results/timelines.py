"""Plot an experiment over time: how iterations settle, and how the jobs' bursts move apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from entrain import policies
from entrain.experiment import Experiment
from entrain.results.names import ideal_name, ideal_word, routing_name, scheduler_name
from entrain.results.values import (
    LEARNING,
    WINDOW,
    RunResult,
    Summarized,
    converged_at,
    scheduler,
    settled_run,
    strategy,
    summarized,
)
from entrain.run.cross import NAME as CROSS
from machine import palette
from machine.headless import pyplot as plt
from machine.palette import Style, style
from machine.terminal import count

SHOWN = 4
"""Number of iterations in each part of the throughput plot."""

SLIDING = 6
"""The iteration at which its middle part begins: MLTCP has learned, and the jobs are moving apart."""


def plot(directory: Path, experiment: Experiment, runs: Sequence[RunResult], form: str) -> None:
    """Write `iterations`, `throughput` and, with several seeds, `seeds` to `directory`, in this format."""
    _save(directory / f"iterations.{form}", iterations(experiment, runs))
    first = [run for run in runs if run.combination.seed == runs[0].combination.seed]
    _save(directory / f"throughput.{form}", throughput(experiment, first))
    if len({run.combination.seed for run in runs}) > 1:
        _save(directory / f"seeds.{form}", seeds(experiment, runs))


def _save(path: Path, figure: Any) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _name(run: RunResult) -> str:
    return scheduler(run.combination)


def iterations(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """Plot iteration times over the ideal: a panel per policy (and routing), a line per run.

    With one seed, the plot includes the range over the jobs.
    """
    panels: dict[str, list[RunResult]] = {}
    routings = len({strategy(run.combination) for run in runs})
    for run in runs:
        parts = [routing_name(strategy(run.combination))] if routings > 1 else []
        panels.setdefault(", ".join([*parts, policies.label(run.combination.policy)]), []).append(run)
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(max(6.5, 3.6 * len(panels) + 1), 4.0),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    number = len({run.combination.seed for run in runs})
    figure.suptitle(
        f"Do iterations come down to their time alone?\n"
        f"{experiment.name}: mean over {count(len(experiment.jobs), 'job')}, "
        + (f"{number} seeds" if number > 1 else f"with range, seed {runs[0].combination.seed}"),
        fontsize=11,
    )
    for place, (title, members) in zip(axes[0], panels.items(), strict=True):
        shown, dotted = set(), False
        for run in members:
            look = style(_name(run))
            over = _times(run) / np.array([[job.ideal_ms] for job in run.jobs])
            numbers = np.arange(over.shape[1])
            name = scheduler_name(experiment, run.combination)
            label = name if name not in shown else None
            shown.add(name)
            place.plot(numbers, over.mean(axis=0), color=look.colour, ls=look.line, lw=1.2, label=label)
            if number == 1:
                place.fill_between(
                    numbers, over.min(axis=0), over.max(axis=0), color=look.colour, alpha=0.2, lw=0
                )
                if (settled := converged_at(run)) is not None:
                    place.axvline(settled, color=look.colour, ls=":", lw=1)
                    dotted = True
        place.axhline(1, color="black", ls="--", lw=1, label=ideal_name(members))
        if dotted:
            place.plot([], [], ls=":", color="grey", lw=1, label="from here on within 5 % of that")
        place.set_title(title, fontsize=10)
        place.set_xlabel("iteration")
        place.grid(alpha=0.3)
        place.legend(loc="lower right", fontsize=8)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel(f"iteration time / {ideal_word(runs)}")
    return figure


def _times(run: RunResult) -> Any:
    """Return iteration times (ms), of shape (jobs, iterations)."""
    shortest = min(len(job.summary.iteration_ms) for job in run.jobs)
    return np.array([job.summary.iteration_ms[:shortest] for job in run.jobs])


def throughput(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """Plot throughput on the busiest link, with a row per run.

    The columns show the beginning, a little later, and the end of the shortest run, at the same times in
    every row. With few iterations, there is one column for the whole run.
    """
    parts = _parts(runs)
    figure, axes = plt.subplots(
        len(runs),
        len(parts),
        figsize=(13, 1.5 * len(runs) + 1),
        sharey=True,
        sharex="col",
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(
        f"Do jobs take turns on their link?\n"
        f"{experiment.name}: throughput of each job on {_busiest(runs[0])}, seed {runs[0].combination.seed}",
        fontsize=12,
    )
    looks = {each.name: palette.job_style(place) for place, each in enumerate(experiment.jobs)}
    if experiment.cross:
        looks[CROSS] = Style(palette.CROSS)
    routings = len({strategy(run.combination) for run in runs})
    for row, run in zip(axes, runs, strict=True):
        for place, (begin, end) in zip(row, parts, strict=True):
            for job, look in looks.items():
                for each in run.timeline.throughput:
                    if (each.link, each.job) == (_busiest(runs[0]), job):
                        times = np.arange(len(each.mbps)) * each.bin_ms / 1e3
                        area = {"fc": look.colour, "ec": "black", "hatch": look.hatch, "alpha": 0.6, "lw": 0}
                        place.fill_between(times, each.mbps, step="post", label=job, **area)
                        place.step(times, each.mbps, where="post", color=look.colour, lw=1)
            place.set_xlim(begin, end)
            place.grid(alpha=0.3)
        routing = f"{routing_name(strategy(run.combination))}\n" if routings > 1 else ""
        row[0].set_ylabel(f"{routing}{scheduler_name(experiment, run.combination)}\nMbit/s", fontsize=9)
    if len(parts) > 1:
        when = ("at first", f"from iteration {SLIDING} on", "at the end")
        for place, name in zip(axes[0], when, strict=True):
            place.set_title(name, fontsize=10)
    axes[0, 0].set_ylim(bottom=0)
    if handles := axes[0, 0].get_legend_handles_labels()[0]:
        figure.legend(handles=handles, loc="outside lower center", fontsize=8, ncols=len(looks))
    for place in axes[-1]:
        place.set_xlabel("time (s)")
    return figure


def _parts(runs: Sequence[RunResult]) -> list[tuple[float, float]]:
    """Return the intervals (s) that the throughput plot shows."""
    starts = []
    for run in runs:
        summary = run.jobs[0].summary
        times = np.cumsum([0.0, *summary.iteration_ms]) / 1e3
        starts.append(
            times * (summary.jct_s or times[-1]) / times[-1]
        )  # ranks start an iteration at different times
    if min(map(len, starts)) <= 3 * SHOWN + 1:
        return [(0.0, max(float(times[-1]) for times in starts))]
    length = max(float(times[first + SHOWN] - times[first]) for times in starts for first in (0, SLIDING))
    sliding = min(float(times[SLIDING]) for times in starts)
    end = min(float(times[-1]) for times in starts)
    return [(0.0, length), (sliding, sliding + length), (end - length, end)]


def _busiest(run: RunResult) -> str:
    return max(run.links, key=lambda link: link.bytes).link


def seeds(experiment: Experiment, runs: Sequence[RunResult]) -> Any:
    """Plot each seed's final iteration time and, if any converged, how many had by each iteration."""
    groups = summarized(runs)
    converged = any(each is not None for group in groups for each in group.converged_at)
    figure, axes = plt.subplots(
        1, 1 + converged, figsize=(10 if converged else 5.5, 3.8), squeeze=False, layout="constrained"
    )
    number = len({run.combination.seed for run in runs})
    found = "" if converged else ", none of which converged"
    figure.suptitle(f"Do iterations come down to their time alone?\n{experiment.name}: {number} seeds{found}")
    if converged:
        _when(axes[0, 0], experiment, groups)
    where = axes[0, -1]
    for place, group in enumerate(groups):
        look = style(_name(group.runs[0]))
        where.plot(
            [place] * len(group.runs), _ends(group), look.marker, color=look.colour, alpha=0.7, ls="none"
        )
    where.axhline(1, color="black", ls="--", lw=1, label=ideal_name(runs))
    where.set_xticks(range(len(groups)), [scheduler_name(experiment, group.which) for group in groups])
    where.margins(x=0.15)
    known = all(group.settled for group in groups)
    what = f"iterations from {LEARNING} on" if known else f"last {WINDOW} iterations"
    where.set_ylabel(f"{what}, / {ideal_word(runs)}")
    where.legend(fontsize=8)
    for place in axes[0]:
        place.grid(alpha=0.3)
    return figure


def _when(axes: Any, experiment: Experiment, groups: Sequence[Summarized]) -> None:
    """Plot the fraction of converged seeds by iteration."""
    longest = max(_times(run).shape[1] for group in groups for run in group.runs)
    for group in groups:
        look = style(_name(group.runs[0]))
        at = sorted(each for each in group.converged_at if each is not None)
        steps = [0, *at, longest]
        shares = np.array([*range(len(at) + 1), len(at)]) / len(group.runs)
        name = scheduler_name(experiment, group.which)
        axes.step(steps, shares, where="post", color=look.colour, ls=look.line, label=name)
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlabel("iteration")
    axes.set_ylabel("fraction of converged seeds")
    axes.legend(loc="lower right", fontsize=8)


def _ends(group: Summarized) -> Sequence[float]:
    """Return each seed's iteration time over ideal: settled, or if a run is too short, at its end."""
    found = [settled_run(run) for run in group.runs]
    return [each.over_ideal for each in found if each] if all(found) else group.over_ideal(WINDOW)
