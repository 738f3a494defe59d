"""Plot which routing and policy help where: a panel per load, as of the simulated experiment `matrix`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from entrain.experiment import Experiment
from entrain.results.names import ideal_name
from entrain.results.values import RunResult, scheduler, strategy, summarized
from machine.headless import pyplot as plt
from machine.terminal import count
from simulation.experiments.matrix import SETTLING
from simulation.remedies import Cell, draw


def suits(runs: Sequence[RunResult]) -> bool:
    """Return whether `runs` differ by routing as well as by policy."""
    routings, policies = ({kind(run.combination) for run in runs} for kind in (strategy, scheduler))
    return len(routings) > 1 and len(policies) > 1


def plot(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Plot `runs` as a PNG."""
    cells = {}
    for group in summarized(runs):
        which = group.runs[0].combination
        load = f"jobs send {which.load:g} % of the time" if which.load else "all runs"
        cells[load, strategy(which), scheduler(which)] = cell(group.runs)
    if any(each.marks for each in cells.values()):
        marks = ", and ECN marks per job and iteration"
    else:
        marks, cells = "", {key: Cell(each.mean, each.p99) for key, each in cells.items()}
    ideal = ideal_name(runs)
    figure = draw(
        cells,
        f"{count(len(experiment.jobs), 'job')} on {len(experiment.topology.hosts)} hosts, live. In each "
        f"cell: mean iteration time over that alone ({ideal}), 99th percentile{marks}. 1 is ideal.",
    )
    figure.suptitle(f"{experiment.name}: which routing and policy bring iterations back to their time alone?")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def cell(runs: Sequence[RunResult]) -> Cell:
    """Return the figures of runs that differ by their seeds, without the first iterations."""
    over = [
        time / job.ideal_ms
        for run in runs
        for job in run.jobs
        for time in job.summary.iteration_ms[int(SETTLING * len(job.summary.iteration_ms)) :]
    ]
    marks = fmean(job.summary.marks_per_iteration or 0.0 for run in runs for job in run.jobs)
    return Cell(fmean(over), float(np.percentile(over, 99)), marks)
