"""Write results to files: `results.json`, CSV files and plots of the completed runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from entrain.experiment import Experiment
from entrain.results.store import Kind
from entrain.results.values import RunResult, document, identity, strategy
from machine.whole import whole


def _order(experiment: Experiment) -> Callable[[RunResult], int]:
    places = {combination: place for place, combination in enumerate(experiment.combinations())}
    return lambda run: places.get(run.combination, len(places))


NETWORK = Kind("network", TypeAdapter(Experiment), TypeAdapter(RunResult), _order)
"""Experiments that run jobs in a network."""


def name(run: RunResult) -> str:
    """Return a file name for `run` that is unique in its experiment."""
    which = run.combination
    load = which.load and f"load{which.load:g}"
    parts = (strategy(which), which.policy, which.control, load, which.seed)
    return "-".join(str(part) for part in parts if part is not None)


def write(directory: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Write `results.json` and the CSV files to `directory`; create it if it does not exist.

    `delays.csv` is written for policy `slots`, `throughput.csv` and `windows.csv` with `sample_ms`. Raises
    OSError if a file cannot be written; its previous version then stays intact.
    """
    directory.mkdir(parents=True, exist_ok=True)
    results = document(experiment, runs)
    with whole(directory / "results.json") as draft:
        draft.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for table, found in rows(experiment, runs).items():
        cells = [{key: _cell(value) for key, value in row.items()} for row in found]
        _write_csv(directory / f"{table}.csv", cells)


Rows = list[dict[str, Any]]
"""Rows of a table, each with all columns."""


def rows(experiment: Experiment, runs: Sequence[RunResult]) -> dict[str, Rows]:
    """Return the rows of each table of results, by the table's name; docs/results-format.md has the columns.

    There are always `jobs`, `links` and `iterations`. `queues` are those of runs that read them, `delays`
    those of policy `slots`, `throughput` and `windows` those of `sample_ms`.
    """
    found: dict[str, Rows] = {"jobs": [], "links": []}
    if any(run.queues for run in runs):
        found["queues"] = []
    for run, values in zip(runs, document(experiment, runs)["runs"], strict=True):
        for table in found:
            found[table] += [{**identity(run), **row} for row in values[table]]
    found["iterations"] = [
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
    ]
    if has_delays(runs):
        found["delays"] = _delays(runs)
    if experiment.sample_ms is not None:
        found["throughput"] = _throughput(runs)
        found["windows"] = [
            {**identity(run), **asdict(each)} for run in runs for each in run.timeline.windows
        ]
    return found


def draw(directory: Path, experiment: Experiment, runs: Sequence[RunResult], form: str = "png") -> None:
    """Plot `runs` to `directory`, in the given format. Raises OSError if a plot cannot be written."""
    from entrain.results import (
        cluster_plots,
        overhead,
        plots,
        remedies,
        timelines,
    )  # matplotlib takes a second to load

    if experiment.cluster is not None:
        cluster_plots.plot(directory, experiment, runs, form)
        return
    if remedies.suits(runs):
        remedies.plot(directory / f"remedies.{form}", experiment, runs)
    if not experiment.loads:
        plots.plot(directory / f"results.{form}", experiment, runs)
    if has_delays(runs):
        overhead.plot(directory / f"overhead.{form}", experiment, runs)
    if experiment.sample_ms is not None:
        timelines.plot(directory, experiment, runs, form)


def has_delays(runs: Sequence[RunResult]) -> bool:
    """Return whether an agent reported delays."""
    return any(host.negotiation_ms or host.decision_ms for run in runs for host in run.scheduling)


def _delays(runs: Sequence[RunResult]) -> Rows:
    """Return the delays of the agents' negotiations and decisions."""
    return [
        {**identity(run), "host": host.host, "kind": kind, "seconds": milliseconds / 1e3}
        for run in runs
        for host in run.scheduling
        for kind, delays in (("negotiation", host.negotiation_ms), ("decision", host.decision_ms))
        for milliseconds in delays
    ]


def _throughput(runs: Sequence[RunResult]) -> Rows:
    return [
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
    ]


def _cell(value: Any) -> Any:
    """Return a job's value as it stands in a CSV file: plain lists as words, others as JSON."""
    if not isinstance(value, list | tuple):
        return value
    return (
        " ".join(map(str, value)) if all(isinstance(each, str | int) for each in value) else json.dumps(value)
    )


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with whole(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
