"""The papers' claims: the `[[paper]]` tables of experiment files.

    [[paper]]
    figure = "slots/8"
    condition = "10 Gbit/s"
    claim = "training speed of VGG19, slots against {against}, {condition}"
    value = "+22 %"
    measure = "training-speed"
    model = "vgg19"
    against = "cubic"

An experiment without its own claim gives only the figure that it belongs to, and its condition.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from machine.toml import Strict, check, read_toml

Figure = Literal["slots/7a", "slots/8", "slots/10", "slots/11a", "slots/11b", "slots/12", "mltcp"]
"""The flow-scheduling paper's figures (8 includes 9 and table I, 12 includes 13), and MLTCP's."""

Measure = Literal[
    "completion-time",
    "training-speed",
    "negotiation-p90-ms",
    "carriers-mbps",
    "scheduler-cpu",
    "iterations-to-converge",
    "mean-speed-up",
    "p99-speed-up",
]
"""How our value for a claim is computed, by `entrain.results.claims`."""

BEST_TCP = "best-tcp"
"""Stands for the plain TCP congestion control with the shortest mean completion time."""


class Paper(Strict):
    """A `[[paper]]` table."""

    figure: Figure
    """The figure that the experiment belongs to."""
    condition: str = ""
    """The paper's name for what sets this experiment apart from others of the figure."""
    claim: str = ""
    """The claim in words. `{condition}` and `{against}` are replaced."""
    value: str = ""
    """The paper's value."""
    measure: Measure | None = None
    """How our value is computed."""
    of: str = "slots"
    """What is measured: a congestion control, `slots`, or `best-tcp`."""
    against: str = ""
    """What it is compared with: a congestion control, `slots`, or `best-tcp`."""
    against_condition: str = ""
    """The condition of another experiment that this one is compared with."""
    model: str = ""
    """Only jobs whose names begin with this count."""

    @model_validator(mode="after")
    def _whole(self) -> Paper:
        if len({bool(self.claim), bool(self.value), bool(self.measure)}) > 1:
            raise ValueError("a claim needs claim, value and measure; give all three or none")
        return self


Papers = Annotated[tuple[Paper, ...], Field(strict=False)]


class _Name(Strict):
    name: str


class _File(Strict):
    experiment: _Name
    paper: Papers = ()


def read_papers(path: Path) -> tuple[str, tuple[Paper, ...]]:
    """Return the name of the experiment in a file, and its `[[paper]]` tables. Raises BadInput."""
    tables: dict[str, Any] = read_toml(path)
    experiment = tables.get("experiment")
    name = experiment.get("name", path.stem) if isinstance(experiment, dict) else path.stem
    file = check(_File, {"experiment": {"name": name}, "paper": tables.get("paper", ())}, str(path))
    return file.experiment.name, file.paper
