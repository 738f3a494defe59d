"""Plot an experiment: iteration times by job, and a comparison of its runs.

Runs that differ by policy or congestion control are compared by completion times, other runs by the number of
simultaneous flows on the links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from entrain.experiment import Experiment
from entrain.results.names import ideal_name, routing_name, scheduler_name
from entrain.results.values import RunResult, scheduler, strategy
from machine.headless import pyplot as plt
from machine.headless import ticker
from machine.interval import interval
from machine.palette import Style, style
from machine.terminal import count

JOBS_UPRIGHT = 6
"""Number of jobs up to which their labels find room side by side."""


@dataclass(frozen=True)
class _Group:
    """The runs of one routing, policy and congestion control, with all seeds pooled."""

    label: str
    style: Style
    runs: tuple[RunResult, ...]

    def times(self, job: int) -> list[list[float]]:
        """Return the iteration times of job number `job`, by run."""
        return [list(run.jobs[job].summary.iteration_ms) for run in self.runs]


def plot(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Plot `runs` as a PNG."""
    topology, groups = experiment.topology, _groups(experiment, runs)
    by_policy = len(groups) > len({strategy(run.combination) for run in runs})
    figure, (times, *others) = plt.subplots(
        1,
        2 if by_policy else 3,
        figsize=(13, 4.8),
        width_ratios=(2.2, 1.3) if by_policy else (2.2, 1, 1),
        layout="constrained",
    )
    seeds = len({run.combination.seed for run in runs})
    question = "and when are jobs done" if by_policy else "and how many flows meet on a link"
    figure.suptitle(
        f"How long do iterations take, {question}?\n"
        f"{experiment.name}: {count(len(experiment.jobs), 'training job')} on {len(topology.hosts)} hosts "
        f"and {len(topology.switches)} {experiment.target} switches, {count(seeds, 'seed')}",
        fontsize=12,
    )
    _times(times, experiment, groups)
    if by_policy:
        _completion(others[0], experiment, groups)
    else:
        _flows(others[0], groups, "one_job_step", "of one job, in one step")
        _flows(others[1], groups, "all_jobs", "of all jobs")
        mean = ", mean over seeds" if seeds > 1 else ""
        others[0].set_ylabel(f"fabric links (per direction){mean}")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _groups(experiment: Experiment, runs: Sequence[RunResult]) -> list[_Group]:
    pooled: dict[tuple[str, str, str | None], list[RunResult]] = {}
    for run in runs:
        which = run.combination
        pooled.setdefault((strategy(which), which.policy, which.control), []).append(run)
    routings = list(dict.fromkeys(routing for routing, _, _ in pooled))
    groups = []
    for (routing, _, _), members in pooled.items():
        by_policy = len(pooled) > len(routings)
        parts = [routing_name(routing)] if len(routings) > 1 or len(pooled) == 1 else []
        if by_policy:
            parts.append(scheduler_name(experiment, members[0].combination))
        look = style(scheduler(members[0].combination) if by_policy else routing)
        if by_policy and routing != routings[0]:
            look = replace(look, hatch=f"{look.hatch}o")
        groups.append(_Group(", ".join(parts), look, tuple(members)))
    return groups


def _bar(group: _Group) -> dict[str, Any]:
    """Return the style of a group's bars."""
    look = group.style
    return {"color": look.colour, "hatch": look.hatch, "edgecolor": look.ink, "lw": 0, "zorder": 2}


def _times(axes: Any, experiment: Experiment, groups: Sequence[_Group]) -> None:
    """Plot per job and group: a bar for the mean, a dot per iteration, and a line for the ideal."""
    width = 0.8 / len(groups)
    places = np.arange(len(experiment.jobs))
    for index, group in enumerate(groups):
        middles = places - 0.4 + width * (index + 0.5)
        times = [group.times(job) for job in range(len(experiment.jobs))]
        means = [np.mean(np.concatenate(values)) for values in times]
        axes.bar(middles, means, width * 0.92, **_bar(group), label=f"{group.label}, mean")
        for middle, job in zip(middles, group.runs[0].jobs, strict=True):
            ends = [middle - width * 0.46, middle + width * 0.46]
            axes.plot(ends, [job.ideal_ms] * 2, "--", color="black", lw=1.2, zorder=4)
        for middle, values in zip(middles, times, strict=True):
            for run in values:
                across = np.linspace(-0.38, 0.38, len(run)) * width if len(run) > 1 else np.zeros(1)
                axes.plot(middle + across, run, ".", color="black", alpha=0.45, ms=4, zorder=3)
    axes.plot([], [], ".", color="black", alpha=0.45, label="iterations, in order")
    ideal = ideal_name(run for group in groups for run in group.runs)
    axes.plot([], [], "--", color="black", lw=1.2, label=ideal)
    apart: str = "\n"
    slanted: dict[str, Any] = {}
    if len(places) > JOBS_UPRIGHT:
        apart, slanted = ", ", {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "fontsize": 8}
    labels = [
        apart.join((job.name, job.spec.collective, f"{len(job.hosts)} hosts")) for job in experiment.jobs
    ]
    axes.set_xticks(places, labels, **slanted)
    axes.set_ylabel("iteration time (ms)")
    axes.set_title("Iteration time (lower is better)", fontsize=10)
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.25)
    axes.legend(loc="upper center", fontsize=8, ncols=2 if len(groups) < 5 else 3, framealpha=1)
    axes.grid(axis="y", alpha=0.3, zorder=0)


def _completion(axes: Any, experiment: Experiment, groups: Sequence[_Group]) -> None:
    """Plot a bar per group: the mean completion time of its jobs, its interval over seeds, a dot per job."""
    several = any(len(group.runs) > 1 for group in groups)
    labels = []
    for place, group in enumerate(groups):
        times = [jct_s for run in group.runs for jct_s in run.completion.jct_s]
        found = interval([run.completion.mean for run in group.runs])
        labels.append(f"{group.label}: {found.show()} s")
        below, above = found.bar()
        error = {"xerr": [[below], [above]], "error_kw": {"zorder": 4}} if found.half is not None else {}
        axes.barh(place, found.mean, 0.75, **error, **_bar(group))
        axes.plot(times, [place] * len(times), ".", color="black", alpha=0.6, ms=5, zorder=3)
    axes.set_yticks(range(len(groups)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    bars = "mean" if experiment.alike else "mean over jobs that differ"
    over = " and 95 % interval over seeds" if several else ""
    axes.set_xlabel(f"job completion time (s)\nbars: {bars}{over}, dots: jobs")
    axes.set_title("Completion time (lower is better)", fontsize=10)
    axes.grid(axis="x", alpha=0.3, zorder=0)


def _flows(axes: Any, groups: Sequence[_Group], attribute: str, whose: str) -> None:
    """Plot the number of links by their largest number of simultaneous flows."""
    counts = [
        Counter(getattr(link, attribute) for run in group.runs for link in run.links) for group in groups
    ]
    most = max(max(each, default=0) for each in counts)
    width = 0.8 / len(groups)
    for index, (group, found) in enumerate(zip(groups, counts, strict=True)):
        links = [found[flows] / len(group.runs) for flows in range(most + 1)]
        middles = np.arange(most + 1) - 0.4 + width * (index + 0.5)
        bars = axes.bar(middles, links, width * 0.92, **_bar(group), label=group.label)
        axes.bar_label(bars, [f"{value:.3g}" if value else "" for value in links], fontsize=8)
    axes.set_xticks(range(most + 1))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set_xlabel("most flows on the link at once")
    axes.set_title(f"Flows {whose} (measured)", fontsize=10)
    axes.margins(y=0.08)
    axes.grid(axis="y", alpha=0.3, zorder=0)
