"""What an experiment is.

A point is a dictionary of plain values; running it is a pure function of it and of the trace file, so points
can run anywhere in any order with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Point = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class PublicTrace:
    """A trace that is public as `file` of `project`, a GitHub repository. `path` is where it is included;
    None: its licence does not allow that, and the experiment's default is drawn at random."""

    file: str
    project: str
    licence: str
    path: Path | None = None

    @property
    def origin(self) -> str:
        """Where to get it, and under which terms."""
        return f"{self.file} of https://github.com/{self.project} (licence: {self.licence})"


@dataclass(frozen=True)
class Experiment:
    """`points(base, policies)` lists what to run; `paper` maps a claim to the paper's words about it.

    `policies` are run by default, `accepts` (None: the same) are those that a user may name. `sends_flows`
    says whether flows over a network are simulated, which can be recorded.
    """

    name: str
    title: str
    trace: PublicTrace | None
    policies: tuple[str, ...]
    points: Callable[[Point, tuple[str, ...]], list[Point]]
    run: Callable[[Point], Result]
    paper: dict[str, str]
    accepts: Callable[[], Iterable[str]] | None = None
    sends_flows: bool = True
