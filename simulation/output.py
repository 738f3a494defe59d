"""Write an experiment's results: summary.json, rows.csv, jobs.csv, coflows.csv and plots.

rows.csv has the figures of summary.json in long form. On request, also
flows.csv and usage.csv; rates.csv and iterations.csv if the experiment is about them. If
pyarrow is installed, each CSV file has a Parquet file.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from machine import rows as long_form
from machine.origin import here
from machine.whole import whole
from simulation import detail
from simulation.experiments.experiment import Experiment, Point
from simulation.plots import plot
from simulation.results import (
    LABELS,
    CoflowTimes,
    JobTimes,
    Parameters,
    Result,
    Row,
    Summary,
    parameters,
    settings,
)
from simulation.rows import rows as published


def summarise(
    experiment: Experiment,
    points: Sequence[Point],
    results: Sequence[Result],
    paper: Mapping[str, str] = MappingProxyType({}),
) -> Summary:
    """Return the summary of an experiment's results. `paper` has the paper's value by claim."""
    return Summary(
        experiment.name,
        experiment.title,
        points[0]["seed"],
        points[0]["limit"],
        settings(points),
        paper,
        tuple(Row(parameters(p), r.figures) for p, r in zip(points, results, strict=True)),
        here(),
    )


def write(directory: Path, summary: Summary, results: Sequence[Result]) -> None:
    """Write everything to `directory`. `results` are in the order of the summary's points."""
    directory.mkdir(parents=True, exist_ok=True)
    with whole(directory / "summary.json") as draft:
        draft.write_text(json.dumps(summary.document(), indent=1) + "\n", encoding="utf-8")
    long_form.write(directory / "rows.csv", published(summary))
    pairs = _pairs(summary, results)
    for (name, found), kind in zip(rows(summary, results).items(), (JobTimes, CoflowTimes), strict=True):
        _write_rows(directory / f"{name}.csv", _columns(kind, summary), found)
    plot(directory / f"{summary.experiment}.png", summary, results)
    _write_details(directory, summary, pairs)
    _write_timelines(directory, pairs)


def rows(summary: Summary, results: Sequence[Result]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables `jobs` and `coflows`: the times, followed by the point's parameters."""

    def extended(at: Parameters, times: JobTimes | CoflowTimes) -> dict[str, Any]:
        return {**{k: getattr(at, k) for k in summary.parameters}, **vars(times)}

    def table(kind: type[JobTimes | CoflowTimes], found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        columns = _columns(kind, summary)
        return [{column: row[column] for column in columns} for row in found]

    pairs = _pairs(summary, results)
    return {
        "jobs": table(JobTimes, (extended(at, job) for at, r in pairs for job in r.jobs)),
        "coflows": table(CoflowTimes, (extended(at, coflow) for at, r in pairs for coflow in r.coflows)),
    }


def _pairs(summary: Summary, results: Sequence[Result]) -> list[tuple[Parameters, Result]]:
    return [(row.at, result) for row, result in zip(summary.points, results, strict=True)]


def _columns(kind: type[JobTimes | CoflowTimes], summary: Summary) -> list[str]:
    columns = [each.name for each in fields(kind)]
    return [*columns, *(each for each in summary.parameters if each not in columns)]


def _write_rows(path: Path, columns: Sequence[str], found: list[dict[str, Any]]) -> None:
    with whole(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(found)
    if found and importlib.util.find_spec("pyarrow") is not None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), path.with_suffix(".parquet"))


def _write_details(directory: Path, summary: Summary, pairs: Sequence[tuple[Parameters, Result]]) -> None:
    if summary.settings.flow_times:
        times = ((at, result.flow_times.columns()) for at, result in pairs if result.flow_times)
        detail.write_columns(directory, "flows", _extended(times))
    if summary.settings.usage_s is not None:
        used = [(at, result.usage) for at, result in pairs if result.usage]
        detail.write_columns(directory, "usage", _extended((at, usage.columns()) for at, usage in used))
        varied = [k for k in summary.varied() if k != "policy"]
        panels: dict[str, list[tuple[str, detail.LinkUsage]]] = {}
        for at, usage in used:
            panel = ", ".join(f"{LABELS.get(k, k)}: {getattr(at, k)}" for k in varied)
            panels.setdefault(panel, []).append((at.policy, usage))
        detail.plot_usage(directory / "usage.png", f"{summary.experiment}: link utilisation", panels)


def _write_timelines(directory: Path, pairs: Sequence[tuple[Parameters, Result]]) -> None:
    """Write rates.csv and iterations.csv if the experiment has timelines."""
    drawn = [(at, result.timeline) for at, result in pairs if result.timeline is not None]
    if drawn:
        rates = ((at, block) for at, timeline in drawn for block in timeline.rates())
        detail.write_columns(directory, "rates", _extended(rates))
        times = ((at, block) for at, timeline in drawn for block in timeline.iterations())
        detail.write_columns(directory, "iterations", _extended(times))


def _extended(blocks: Iterable[tuple[Parameters, detail.Columns]]) -> Iterator[detail.Columns]:
    """Add each point's parameters as columns of one value."""
    for at, columns in blocks:
        rows = len(next(iter(columns.values())))
        more: dict[str, Any] = {k: [v] * rows for k, v in at.given().items() if k not in columns}
        yield {**columns, **more}
