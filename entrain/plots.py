"""The picture of an experiment: iteration times by job, and how many flows its links carried at one time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from entrain.experiment import Experiment
from entrain.report import label
from entrain.results import RunResult

_COLOURS = ("#d1605e", "#3b75af", "#85b66f", "#8d6aa8", "#e49444", "#6a9f9c")


def plot(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Draw `runs` to a PNG."""
    figure, (times, one_job, all_jobs) = plt.subplots(
        1, 3, figsize=(13, 4.8), width_ratios=(2.2, 1, 1), layout="constrained"
    )
    topology = experiment.topology
    figure.suptitle(
        f"{experiment.name}: {len(experiment.jobs)} training jobs at once on {len(topology.hosts)} hosts and "
        f"{len(topology.switches)} switches ({experiment.target})",
        fontsize=13,
    )
    _times(times, experiment, runs)
    _flows(one_job, runs, "one_job_step", "of one job, in one step")
    _flows(all_jobs, runs, "all_jobs", "of all jobs")
    one_job.set_ylabel("links of the fabric (each direction)")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _times(axes: Any, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Per job and run: a bar for the mean, a dot for each iteration, a line for the ideal."""
    width = 0.8 / len(runs)
    places = np.arange(len(experiment.jobs))
    for index, run in enumerate(runs):
        left = places - 0.4 + width * (index + 0.5)
        colour = _COLOURS[index % len(_COLOURS)]
        means = [job.mean_ms for job in run.jobs]
        axes.bar(left, means, width * 0.92, color=colour, label=f"{label(run, runs)}, mean", zorder=2)
        for x, job in zip(left, run.jobs, strict=True):
            values = job.summary.iteration_ms
            spread = np.linspace(-0.3, 0.3, len(values)) * width if len(values) > 1 else [0.0]
            axes.plot(x + np.asarray(spread), values, ".", color="black", alpha=0.45, ms=4, zorder=3)
    axes.plot([], [], ".", color="black", alpha=0.45, label="each iteration, in order")
    for place, job in zip(places, runs[0].jobs, strict=True):
        axes.plot([place - 0.42, place + 0.42], [job.ideal_ms] * 2, "--", color="black", lw=1.2, zorder=4)
    axes.plot([], [], "--", color="black", lw=1.2, label="alone in the network (bound)")
    axes.set_xticks(
        places,
        [f"{job.name}\n{job.spec.collective}, {len(job.hosts)} hosts" for job in experiment.jobs],
    )
    axes.set_ylabel("iteration time (ms)")
    axes.set_title("Iteration time, lower is better")
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.25)
    axes.legend(loc="upper center", fontsize=8, ncols=2, framealpha=1)
    axes.grid(axis="y", alpha=0.3, zorder=0)


def _flows(axes: Any, runs: Sequence[RunResult], attribute: str, whose: str) -> None:
    """How many links carried at most so many flows at one time."""
    counts = [Counter(getattr(link, attribute) for link in run.links) for run in runs]
    most = max(max(count, default=0) for count in counts)
    width = 0.8 / len(runs)
    for index, (run, count) in enumerate(zip(runs, counts, strict=True)):
        at = np.arange(most + 1) - 0.4 + width * (index + 0.5)
        bars = axes.bar(
            at,
            [count[flows] for flows in range(most + 1)],
            width * 0.92,
            color=_COLOURS[index % len(_COLOURS)],
            label=label(run, runs),
            zorder=2,
        )
        axes.bar_label(bars, [str(count[flows] or "") for flows in range(most + 1)], fontsize=8)
    axes.set_xticks(range(most + 1))
    axes.set_xlabel("most flows on the link at one time")
    axes.set_title(f"Flows {whose}")
    axes.legend(fontsize=8)
    axes.grid(axis="y", alpha=0.3, zorder=0)
