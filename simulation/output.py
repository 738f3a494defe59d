"""Writes what an experiment found: summary.json, jobs.csv, coflows.csv, on demand flows.csv and usage.csv,
Parquet beside each where pyarrow is there, and plots."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from simulation import detail
from simulation.experiments import Experiment, Point, Result

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
"""Parts of a point that are the same for all points of an experiment."""

LISTS = ("jobs", "coflows", "flow_times", "usage")
"""Parts of a result that go to files of their own."""


def parameters(point: Point) -> dict[str, Any]:
    """Return what distinguishes a point from the others of its experiment."""
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
            k: v for k, v in points[0].items() if k in HIDDEN and k not in ("experiment", "limit", "seed")
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
        detail.plot_usage(directory / "usage.png", f"{experiment}: how much of the links is used", settings)


def _extend(columns: detail.Columns, point: Point) -> detail.Columns:
    """Add what distinguishes `point` from the others as columns of one value."""
    rows = len(next(iter(columns.values())))
    return {**columns, **{k: [v] * rows for k, v in parameters(point).items() if k not in columns}}


def _write_csv(path: Path, columns: list[str], rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _panel(point: Point) -> float:
    return float(point["gbps"] if "gbps" in point else point.get("domain") or 0)


_VARIED = {
    "eta_ms": "observing interval η (ms)",
    "theta_max": "largest occupancy ratio θ_max",
    "gap_ms": "mean time between arrivals (ms)",
    "delta": "most parameter servers of a job, Δ",
}
"""What is varied along the horizontal axis, and what it is called there."""


def plot(path: Path, summary: dict[str, Any], points: list[Point], results: list[Result]) -> None:
    """Plot completion times: distributions where only policies differ, else total JCT over what is varied.

    Draws nothing where neither says what was measured: no job ends, or something else differs between points.
    """
    varied = next((k for k in _VARIED if len({p.get(k) for p in points}) > 1), None)
    drawn = [(p["policy"], _panel(p)) for p, r in zip(points, results, strict=True) if r.get("jobs")]
    if not drawn or (varied is None and len(set(drawn)) < len(drawn)):
        path.unlink(missing_ok=True)
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # As many colours as there are policies, the same in every panel.
    policies = list(dict.fromkeys(p["policy"] for p in points))
    colours = {policy: pyplot.get_cmap("tab20")(index % 20) for index, policy in enumerate(policies)}
    panels = sorted({_panel(p) for p in points})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        here = [(p, r) for p, r in zip(points, results, strict=True) if _panel(p) == panel and r.get("jobs")]
        for policy in dict.fromkeys(p["policy"] for p, _ in here):
            mine = [(p, r) for p, r in here if p["policy"] == policy]
            if varied is not None:
                axis.plot(
                    [p[varied] for p, _ in mine],
                    [r["total_jct_s"] for _, r in mine],
                    "o-",
                    label=policy,
                    color=colours[policy],
                )
            else:
                jct = sorted(job["jct_s"] for job in mine[0][1]["jobs"])
                axis.step(
                    jct, [(i + 1) / len(jct) for i in range(len(jct))], label=policy, color=colours[policy]
                )
        axis.set_xlabel(_VARIED[varied] if varied else "job completion time, JCT (s, logarithmic)")
        axis.set_ylabel("total JCT (s), lower is better" if varied else "fraction of jobs that have ended")
        if varied:
            axis.set_yscale("log")
        if varied is None and here:
            axis.set_xscale("log")
        axis.set_title(f"{panel:g} Gbit/s links" if "gbps" in points[0] else "")
        if here:
            axis.legend(fontsize=7)
    figure.suptitle(summary["title"])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
