"""What papers claim: the `[[paper]]` tables of experiment files.

    [[paper]]
    figure = "slots/8"
    condition = "10 Gbit/s"
    claim = "training speed of VGG19, slots against {against}, {condition}"
    value = "+22 %"
    measure = "training-speed"
    model = "vgg19"
    against = "cubic"

An experiment without a claim of its own says which figure it belongs to, and under which condition.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from machine.toml import Strict, check, read_toml

Figure = Literal["slots/7a", "slots/8", "slots/10", "slots/11a", "slots/11b", "slots/12", "mltcp"]
"""The flow-scheduling paper's figures (8 with 9 and table I, 12 with 13), and MLTCP's."""

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
"""How what came out here is computed; `entrain.results.claims` does it."""

BEST_TCP = "best-tcp"
"""Stands for the plain TCP with the shortest mean completion time."""


class Paper(Strict):
    """A `[[paper]]` table.

    figure: to which of a paper's figures the experiment belongs. condition: what the paper calls what
    distinguishes it from others of that figure. claim: in words, in which `{condition}` and `{against}` are
    replaced. value: the paper's. measure: how ours is computed; `of` is compared with `against` (congestion
    controls, slots, or best-tcp), of jobs whose names begin with `model`; `against_condition` is that of
    another experiment, with which this one is compared.
    """

    figure: Figure
    condition: str = ""
    claim: str = ""
    value: str = ""
    measure: Measure | None = None
    of: str = "slots"
    against: str = ""
    against_condition: str = ""
    model: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Paper:
        if len({bool(self.claim), bool(self.value), bool(self.measure)}) > 1:
            raise ValueError("a claim has claim, value and measure; give all three, or none")
        return self


Papers = Annotated[tuple[Paper, ...], Field(strict=False)]


class _Name(Strict):
    name: str


class _File(Strict):
    experiment: _Name
    paper: Papers = ()


def read_papers(path: Path) -> tuple[str, tuple[Paper, ...]]:
    """The name of the experiment in a file, and its `[[paper]]` tables. Raises BadInput."""
    tables: dict[str, Any] = read_toml(path)
    experiment = tables.get("experiment")
    name = experiment.get("name", path.stem) if isinstance(experiment, dict) else path.stem
    file = check(_File, {"experiment": {"name": name}, "paper": tables.get("paper", ())}, str(path))
    return file.experiment.name, file.paper
