"""The simulator from Python: `entrain simulate`, with the results as tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrain.api.results import Pictures, Tables, own_backend, pictures
from entrain.results.claimed import values_of
from machine.errors import BadInput
from simulation import output, sweep
from simulation.experiments.experiment import Point
from simulation.experiments.registry import points
from simulation.results import Result, Summary

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, float], object]
"""Called with the experiment's name, and the part of its points that is done (0 to 1)."""


@dataclass(frozen=True)
class SimulationResults(Tables):
    """The results of a simulated experiment, as tables."""

    _summary: Summary
    _results: tuple[Result, ...]

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._results)

    def __repr__(self) -> str:
        tables = ", ".join(self.tables)
        return f"<simulated results of {self._summary.experiment}: {len(self)} points; tables {tables}>"

    @cached_property
    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        return {"points": self.document["points"], **output.rows(self._summary, self._results)}

    @property
    def points(self) -> pd.DataFrame:
        """One row per point: its parameters and its figures."""
        return self.frame("points")

    @property
    def jobs(self) -> pd.DataFrame:
        """One row per job and point, as in `jobs.csv`."""
        return self.frame("jobs")

    @property
    def coflows(self) -> pd.DataFrame:
        """One row per coflow and point, as in `coflows.csv`."""
        return self.frame("coflows")

    @property
    def document(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return self._summary.document()

    def plot(self) -> Pictures:
        """Return the pictures that `entrain simulate --out` draws. A notebook shows them."""
        with tempfile.TemporaryDirectory(prefix="entrain-") as place, own_backend():
            output.write(Path(place), self._summary, self._results)
            return pictures(Path(place))


def simulate(
    name: str,
    *,
    policy: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    trace: str | Path | None = None,
    scale_trace: bool = False,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SimulationResults:
    """Run the experiment `name` of `entrain simulate`, and return its results. It needs no root.

    `policy` are the names of policies; None: the experiment's. `limit` is how many jobs, coflows or
    iterations are simulated. A `trace` of vclos-... runs as it is, or with `scale_trace` at the experiment's
    load. `out` is a directory that keeps each point as soon as it ends; those that it
    already has are not run again. `workers` is the number of processes (None: one for each processor).

    Raises BadInput.
    """
    if isinstance(policy, str):
        policy = policy.split(",")
    if workers is not None and workers < 1:
        raise BadInput(f"workers is {workers}; give at least 1")
    chosen = None if policy is None else ",".join(policy)
    experiment, todo = points(name, Path(trace) if trace else None, chosen, limit, seed, scaled=scale_trace)
    ended = 0

    def done(point: Point, resumed: bool) -> None:
        nonlocal ended
        ended += 1
        if progress is not None:
            progress(name, ended / len(todo))

    results = sweep.run_points(todo, directory=Path(out) if out else None, workers=workers, done=done)
    return SimulationResults(output.summarise(experiment, todo, results, values_of(name)), tuple(results))
