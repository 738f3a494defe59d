"""The figures of a simulated experiment as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from machine.interval import Interval, relative
from machine.rows import Row, joined
from simulation.experiments.registry import EXPERIMENTS
from simulation.results import Collisions, Completion, Parameters, Summary, figures_by_name

ALONE = "alone"
"""The policy of a job that is alone in the network."""

CURVES = ("percentiles_us", "percentiles_s", "draws_jct_s")
"""Figures with too many values for a table: they stay in summary.json."""


def command(summary: Summary) -> str:
    """Return the command that repeats an experiment."""
    options = f"--seed {summary.seed}"
    trace = Path(summary.settings.trace or "").name
    included = EXPERIMENTS[summary.experiment].trace
    if trace and not (included and included.path and included.path.name == trace):
        options += f" --trace {trace}"
    if summary.limit:
        options += f" --limit {summary.limit}"
    return f"entrain simulate {summary.experiment} {options}"


def rows(summary: Summary) -> list[Row]:
    """Return the figures of all points, and what follows from them.

    A list of values by job has a row for each job. Draws are seeds. What jobs would take alone in the network
    has policy `alone`.
    """
    made: dict[Row, None] = {}  # points of several policies share what jobs would take alone
    for point in summary.points:
        where = _where(summary, point.at)
        if isinstance(point.figures, Completion):
            made.update(dict.fromkeys(_completion(where, point.figures)))
        for figure, job, value in _values(figures_by_name(point.figures)):
            made[Row(**where, job=job, figure=figure, seed=None, value=value)] = None
        if isinstance(point.figures, Collisions):
            for flows, part in enumerate(point.figures.flows, 1):
                made[Row(**where, job="", figure=f"with_{flows}_flows", seed=None, value=part)] = None
    made.update(dict.fromkeys(_against_fair(summary)))
    return [row.measured(summary.origin, command(summary)) for row in made]


def _where(summary: Summary, at: Parameters) -> dict[str, Any]:
    given = at.given()
    more = {k: v for k, v in given.items() if k not in ("policy", "routing")}
    if summary.limit:
        more["limit"] = summary.limit
    return {
        "experiment": summary.experiment,
        "how": "simulated",
        "parameters": joined(more),
        "policy": at.policy,
        "routing": at.routing or "",
        "control": "",
    }


def _values(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield name, job and value of each figure."""
    for name, value in figures.items():
        if isinstance(value, int | float):
            yield name, "", float(value)
        elif isinstance(value, dict):
            for inner, job, number in _values(value):
                yield f"{name}_{inner}", job, number
        elif name == "by_model":
            for model in value:
                for inner, _, number in _values(model):
                    yield inner, model["model"], number
        elif isinstance(value, list | tuple) and name not in (*CURVES, "flows"):
            for place, number in enumerate(value, 1):
                yield name, str(place), float(number)


def _completion(where: Mapping[str, Any], figures: Completion) -> Iterator[Row]:
    """Yield completion times over those alone, those alone, and those of each draw."""

    def row(figure: str, value: float, seed: int | None = None, **other: str) -> Row:
        return Row(**{**where, **other}, job="", figure=figure, seed=seed, value=value)

    yield row("jct_to_alone", figures.to_bound)
    yield row("total_jct_s", figures.lower_bound_s, policy=ALONE)
    yield row("mean_jct_s", figures.mean_alone_s, policy=ALONE)
    yield row("within_10_s", figures.bound_within_10_s, policy=ALONE)
    for draw, mean in enumerate(figures.draws_jct_s or ()):
        yield row("mean_jct_s", mean, draw)


def _against_fair(summary: Summary) -> Iterator[Row]:
    """Yield the change of mean JCT from fair sharing, where the workload was drawn several times."""
    points = [row for row in summary.rows(Completion) if row.figures.draws_jct_s]

    def others(at: Parameters) -> dict[str, Any]:
        return {k: v for k, v in at.given().items() if k != "policy"}

    fair = [row for row in points if row.at.policy == "fair"]
    for point in points:
        base = next((row.figures for row in fair if others(row.at) == others(point.at)), None)
        if base is None or point.at.policy == "fair":
            continue
        change = _change(base.draws_jct_s or (), point.figures.draws_jct_s or ())
        yield Row(
            **_where(summary, point.at),
            job="",
            figure="mean_jct_against_fair_percent",
            seed=None,
            value=100 * change.mean,
            half=None if change.half is None else 100 * change.half,
            n=len(point.figures.draws_jct_s or ()),
        )


def _change(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Return the change as a fraction; draws are the same in both."""
    return relative(dict(enumerate(before)), dict(enumerate(after)))
