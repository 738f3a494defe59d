"""Plot the scheduling overhead: delays, CPU time, traffic (flow-scheduling paper, figures 12 and 13)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from entrain.experiment import Experiment
from entrain.policies.reports import HostReport
from entrain.policies.slots import SlotsTable
from entrain.results.names import label, policy_name
from entrain.results.values import RunResult, summarized
from machine.headless import pyplot as plt
from machine.headless import ticker
from machine.interval import percentile
from machine.palette import Line, style

_DELAYS: dict[str, Callable[[RunResult], list[float]]] = {
    "negotiation": lambda run: [each for host in run.scheduling for each in host.negotiation_ms],
    "decision": lambda run: [each for host in run.scheduling for each in host.decision_ms],
}
"""The delays of all hosts in ms, by kind."""
_TITLES = {
    "negotiation": "Negotiation: from the query for the load\non a flow's path to the answer",
    "decision": "Decision: computing the rates\nof one flow",
}
"""The plots' titles, by kind of delay."""
_MARKS = {"negotiation": 90, "decision": 99}
"""The percentile that is marked, by kind of delay: the one that the paper gives."""

_COLOUR = style("slots").colour
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (10, 3)))
"""Lines of the runs that differ by more than their seeds, in order."""


def plot(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Plot the runs with agents under the first policy that has any, as a PNG.

    At least one agent must have made a decision.
    """
    first = next(run for run in runs if any(delays(run) for delays in _DELAYS.values()))
    policy = first.combination.policy
    scheduled = [run for run in runs if run.scheduling and run.combination.policy == policy]
    curves = [kind for kind, delays in _DELAYS.items() if any(map(delays, scheduled))]
    figure, axes = plt.subplot_mosaic(
        [[*curves, "processor"], [*curves, "link"]],
        figsize=(4.4 * (len(curves) + 1), 4.4),
        layout="constrained",
    )
    table = SlotsTable.model_validate(experiment.tables.get(policy, {}))
    figure.suptitle(
        f"What does scheduling in slots cost?\n{experiment.name}, {policy_name(experiment, policy)}: "
        f"{len(scheduled[0].scheduling)} hosts, {table.loads} loads, slots of {table.slot_ms:g} ms",
        fontsize=13,
    )
    groups = [group.runs for group in summarized(scheduled)]
    for group, line in zip(groups, itertools.cycle(_LINES)):
        name = label(experiment, group[0], [each[0] for each in groups]) if len(groups) > 1 else None
        for kind in curves:
            _cumulative(axes[kind], list(map(_DELAYS[kind], group)), _MARKS[kind], line, name)
    for kind in curves:
        axes[kind].set_title(_TITLES[kind])
    axes[curves[0]].set_ylabel("cumulative fraction, all hosts")
    _costs(axes["processor"], scheduled, lambda host: host.cpu_share)
    _costs(axes["link"], scheduled, lambda host: host.carrier_share)
    axes["processor"].set_title("Agent: CPU time, % of one core")
    axes["link"].set_title("Carriers and feedback: % of the host's link")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _cumulative(
    axes: Any, delays: Sequence[Sequence[float]], percent: int, line: Line, name: str | None
) -> None:
    """Plot the cumulative distribution of the `delays` (ms) of all seeds, with a line at that percentile.

    Its legend gives the lowest and highest value that single seeds with enough delays have there.
    """
    values = np.sort(np.concatenate(delays))
    if not values.size:
        return
    marks = [mark for each in delays if (mark := percentile(each, percent)) is not None]
    said = f"{len(values)} values"
    if marks:
        low, high = f"{min(marks):.2g}", f"{max(marks):.2g}"
        said = f"{percent} % within {low if low == high else f'{low} to {high}'} ms"
        axes.axvline(np.percentile(values, percent), color="black", ls=line, lw=1)
    axes.step(
        values,
        np.arange(1, len(values) + 1) / len(values),
        where="post",
        color=_COLOUR,
        ls=line,
        label=f"{name}: {said}" if name else said,
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if values[-1] < 1e3 * values[0] else (1,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("ms")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=9, framealpha=1)


def _costs(axes: Any, runs: Sequence[RunResult], share: Callable[[HostReport], float | None]) -> None:
    """Plot a bar per host: its mean `share` over the runs, in per cent."""
    hosts = [host.host for host in runs[0].scheduling]
    columns = zip(*(run.scheduling for run in runs), strict=True)
    values = [100 * fmean(share(host) or 0.0 for host in column) for column in columns]
    bars = axes.bar(hosts, values, 0.7, color=_COLOUR, zorder=2)
    axes.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=8)
    axes.set_ylabel("%")
    axes.margins(y=0.2)
    axes.grid(axis="y", alpha=0.3, zorder=0)
