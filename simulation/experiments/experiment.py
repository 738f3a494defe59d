"""The interface of simulated experiments.

A point is a dictionary of plain values, with the names of `simulation.results.Parameters` and `Settings`.
Running it is a pure function of it and of the trace file, so points can run anywhere in any order with the
same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.results import Result

Point = dict[str, Any]


@dataclass(frozen=True)
class PublicTrace:
    """A public trace."""

    file: str
    """Its file name in the project."""
    project: str
    """A GitHub repository."""
    licence: str
    path: Path | None = None
    """The included copy. None: the licence does not allow one, and the default workload is random."""

    @property
    def origin(self) -> str:
        """Its source and licence."""
        return f"{self.file} of https://github.com/{self.project} (licence: {self.licence})"


@dataclass(frozen=True)
class Experiment:
    """A simulated experiment."""

    name: str
    title: str
    trace: PublicTrace | None
    policies: tuple[str, ...]
    """The policies that run by default."""
    points: Callable[[Point, tuple[str, ...]], list[Point]]
    """Returns the points to run, from the common parameters and the policies."""
    run: Callable[[Point], Result]
    accepts: Callable[[], Iterable[str]] | None = None
    """Returns the policies that a user may name; None: only the default ones."""
    sends_flows: bool = True
    """Whether it simulates flows over a network, which can be recorded."""
    scales_traces: bool = False
    """Whether a trace can be scaled to the experiment's load; `points` then reads `scaled`."""
