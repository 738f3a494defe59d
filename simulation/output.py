"""Write an experiment's results: summary.json, jobs.csv, coflows.csv and plots.

On request, also flows.csv and usage.csv. If pyarrow is installed, each CSV file has a Parquet file.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from simulation import detail
from simulation.experiments.experiment import Experiment, Point, Result
from simulation.plots import plot

HIDDEN = (
    "experiment",
    "limit",
    "seed",
    "trace",
    "iteration_scale",
    "arrival_scale",
    "jobs",
    "servers",
    "window_s",
    "flow_times",
    "usage_s",
)
"""Parameters that are the same for all points of an experiment, or that `scale` includes."""

LISTS = ("jobs", "coflows", "flow_times", "usage")
"""Parts of a result that are written to separate files."""


def parameters(point: Point) -> dict[str, Any]:
    """Return the parameters that distinguish a point from the others of its experiment."""
    return {key: value for key, value in point.items() if key not in HIDDEN}


def summarise(experiment: Experiment, points: list[Point], results: list[Result]) -> dict[str, Any]:
    """Return the content of summary.json."""
    rows = [
        {**parameters(p), **{k: v for k, v in r.items() if k not in LISTS}, **_ccts(r)}
        for p, r in zip(points, results, strict=True)
    ]
    summary: dict[str, Any] = {
        "experiment": experiment.name,
        "title": experiment.title,
        "seed": points[0]["seed"],
        "limit": points[0]["limit"],
        "settings": {
            k: v
            for k, v in points[0].items()
            if k in HIDDEN
            and k not in ("experiment", "limit", "seed")
            and all(point[k] == v for point in points)
        },
        "paper": experiment.paper,
        "parameters": list(parameters(points[0])),
        "points": rows,
    }
    if experiment.name == "parrot-jct":
        totals: dict[str, dict[str, float]] = {}
        for point, result in zip(points, results, strict=True):
            at_speed = totals.setdefault(str(point["gbps"]), {})
            at_speed[point["policy"]] = result["total_jct_s"]
            at_speed["lower_bound"] = result["lower_bound_s"]
        summary["total_jct_s"] = totals
    return summary


def _ccts(result: Result) -> dict[str, float]:
    ccts = [c["cct_s"] for c in result.get("coflows", ())]
    return {"mean_cct_s": float(np.mean(ccts)), "p95_cct_s": float(np.percentile(ccts, 95))} if ccts else {}


def write(directory: Path, summary: dict[str, Any], points: list[Point], results: list[Result]) -> None:
    """Write everything to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for name, key, columns in (
        ("jobs", "jobs", ("job", "arrival_s", "jct_s", "waiting_s", "lower_bound_s")),
        ("coflows", "coflows", ("coflow", "arrival_s", "cct_s", "bytes")),
    ):
        extra = [c for c in parameters(points[0]) if c not in columns]
        rows = [
            {**{c: entry[c] for c in columns}, **{c: parameters(point)[c] for c in extra}}
            for point, result in zip(points, results, strict=True)
            for entry in result.get(key, ())
        ]
        _write_csv(directory / f"{name}.csv", [*columns, *extra], rows)
        if rows and importlib.util.find_spec("pyarrow") is not None:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), directory / f"{name}.parquet")
    plot(directory / f"{summary['experiment']}.png", summary, points, results)
    _write_details(directory, summary["experiment"], points, results)


def _write_details(directory: Path, experiment: str, points: list[Point], results: list[Result]) -> None:
    pairs = list(zip(points, results, strict=True))
    flows = (_extend(r["flow_times"], p) for p, r in pairs if "flow_times" in r)
    usage = (_extend(detail.usage_columns(r["usage"]), p) for p, r in pairs if "usage" in r)
    if "flow_times" in points[0]:
        detail.write_columns(directory, "flows", flows)
    if "usage_s" in points[0]:
        detail.write_columns(directory, "usage", usage)
        settings: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for point, result in pairs:
            setting = ", ".join(f"{k} = {v}" for k, v in parameters(point).items() if k != "policy")
            settings.setdefault(setting, []).append((point["policy"], result["usage"]))
        detail.plot_usage(directory / "usage.png", f"{experiment}: link utilisation", settings)


def _extend(columns: detail.Columns, point: Point) -> detail.Columns:
    """Add what distinguishes `point` from the others as columns of one value."""
    rows = len(next(iter(columns.values())))
    return {**columns, **{k: [v] * rows for k, v in parameters(point).items() if k not in columns}}


def _write_csv(path: Path, columns: list[str], rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
