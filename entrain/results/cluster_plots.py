"""Plot an experiment on a cluster: how long jobs ran and waited, and when each job ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from entrain.experiment import Experiment
from entrain.results.cluster import Stay
from entrain.results.names import routing_name
from entrain.results.values import RunResult, series_of
from machine.headless import pyplot as plt
from machine.interval import percentile
from machine.palette import style
from machine.terminal import count

_TIMES = (
    ("jrt_s", "Running time (JRT)", "from a job's start to its end (s)"),
    ("jwt_s", "Waiting time (JWT)", "from a job's arrival to its start (s)"),
    ("jct_s", "Completion time (JCT)", "from a job's arrival to its end (s)"),
)


def plot(directory: Path, experiment: Experiment, runs: Sequence[RunResult], form: str) -> None:
    """Plot `runs` to `results` and `cluster` in `directory`, in the given format."""
    _distributions(directory / f"results.{form}", experiment, runs)
    _occupancy(directory / f"cluster.{form}", experiment, runs)


def _by_name(experiment: Experiment, runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(series_of(experiment, run.combination), []).append(run)
    return found


def _stays(runs: Sequence[RunResult]) -> list[Stay]:
    return [stay for run in runs if run.stays for stay in run.stays.stays]


def _distributions(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """A panel for each time, one for iterations over those alone: the share that took at most x."""
    groups = _by_name(experiment, runs)
    alone = any(run.over_alone for run in runs)
    figure, axes = plt.subplots(
        1, 4 if alone else 3, figsize=(16 if alone else 12.5, 4.6), layout="constrained"
    )
    for axis, (key, title, label) in zip(axes, _TIMES, strict=False):
        for name, members in groups.items():
            values = [getattr(stay, key) for stay in _stays(members)]
            _curve(axis, name, values, f"{routing_name(name)}, mean {np.mean(values):.2f} s")
        _finish(axis, title, label, "share of the jobs")
    if alone:
        for name, members in groups.items():
            values = [value for run in members for value in run.over_alone]
            p99 = percentile(values, 99)
            said = "" if p99 is None else f", p99 {p99:.2f}"
            _curve(axes[3], name, values, routing_name(name) + said)
        _finish(axes[3], "Iteration time", "over the same job's alone", "share of the iterations")
    seeds = len({run.combination.seed for run in runs})
    number = len(runs[0].jobs)
    figure.suptitle(
        f"How long do jobs wait and run?\n{experiment.name}: {count(number, 'job')}, {count(seeds, 'seed')}, "
        "measured",
        fontsize=13,
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _curve(axis: Any, name: str, values: Sequence[float], label: str) -> None:
    look = style(name)
    shares = np.arange(1, len(values) + 1) / len(values)
    axis.plot(
        np.sort(values), shares, color=look.colour, ls=look.line, lw=2, drawstyle="steps-post", label=label
    )


def _finish(axis: Any, title: str, label: str, share: str) -> None:
    axis.set_title(f"{title} (left is better)", fontsize=11)
    axis.set_xlabel(label)
    axis.set_ylabel(f"{share} that take at most this")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)


def _occupancy(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """A panel per run of the first seed: when jobs held each GPU, and the number of waiting jobs."""
    first = [run for run in runs if run.combination.seed == runs[0].combination.seed]
    figure, axes = plt.subplots(
        len(first), 1, figsize=(12, 2.3 * len(first) + 0.8), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, run in zip(axes[:, 0], first, strict=True):
        name = series_of(experiment, run.combination)
        look, stays = style(name), _stays([run])
        for stay in stays:
            for gpu in stay.placement.gpus:
                span = (stay.start_s, stay.end_s - stay.start_s)
                axis.broken_barh([span], (gpu, 1), color=look.colour, edgecolor="white", lw=0.3)
        gpus = len(experiment.topology.hosts)
        axis.set_ylim(0, gpus)
        axis.set_ylabel("GPU")
        events = sorted([(s.arrival_s, 1) for s in stays] + [(s.start_s, -1) for s in stays])
        waiting = axis.twinx()
        waiting.step(
            [at for at, _ in events], np.cumsum([by for _, by in events]), where="post", color="black", lw=1.2
        )
        waiting.set_ylim(bottom=0)
        waiting.set_ylabel("waiting jobs (line)")
        axis.set_title(f"{routing_name(name)}: GPUs that jobs hold", fontsize=10, loc="left")
    axes[-1, 0].set_xlabel("time since the first arrival (s)")
    figure.suptitle(
        f"When is each GPU in use?\n{experiment.name}, seed {first[0].combination.seed}", fontsize=13
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)
