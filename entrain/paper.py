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

`experiments/results-page.toml` has the figures: the sections of docs/results.md that show live experiments.

    [[section]]
    title = "Live, slot scheduler: random packet loss (figure 10)"
    figures = ["slots/10"]
    tables = "loss"
    text = "Packets are lost at random on the links between the switches."
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from machine.packages import ROOT
from machine.toml import Strict, check, one_of, read_toml

EXPERIMENTS = ROOT / "experiments"

Tables = Literal[
    "completion",
    "loss",
    "two-jobs",
    "tcp-flow",
    "overhead",
    "slot-rates",
    "mltcp",
    "cluster",
    "bounds",
    "unfairness",
    "shifts",
    "remedies",
]
"""The kinds of figures: what the tables of a section show, by `entrain.results.live`."""

Measure = Literal[
    "completion-time",
    "training-speed",
    "negotiation-p90-ms",
    "carriers-mbps",
    "scheduler-cpu",
    "iterations-to-converge",
    "mean-speed-up",
    "fewer-losses",
    "p99-speed-up",
    "running-time",
    "waiting-time",
    "unfair-gain",
    "shifted-over-alone",
    "shifted-marks",
    "communication-gain",
    "remedy-gain",
]
"""How our value for a claim is computed, by `entrain.results.claims`."""

BEST_TCP = "best-tcp"
"""Stands for the plain TCP congestion control with the shortest mean completion time."""


class Section(Strict):
    """A `[[section]]` table: a section of docs/results.md."""

    title: Annotated[str, Field(min_length=1)]
    figures: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """The figures whose experiments and claims it shows."""
    also: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Figures whose experiments it shows without their claims."""
    tables: Tables
    text: str
    """Its introduction, in Markdown. `{learning}` is replaced by the number of initial iterations that do not
    count as settled."""

    @property
    def shown(self) -> tuple[str, ...]:
        """All figures whose experiments it shows."""
        return (*self.figures, *self.also)


Kind = Literal["change", "ratio", "amount", "bound", "fewer"]
"""What figures of a claim are; `entrain.results.verdicts` compares them by it."""


class Verdict(Strict):
    """A `[[verdict]]` table: a row of the table that opens docs/results.md."""

    section: str
    """The title of the section that has the claim."""
    claim: str
    """The claim as it stands in the section's table."""
    kind: Kind | None = None
    """What its figures are, where their words do not say so."""
    why: str
    """Why it is so, in one line."""


class _Page(Strict):
    section: Annotated[tuple[Section, ...], Field(min_length=1, strict=False)]
    verdict: Annotated[tuple[Verdict, ...], Field(strict=False)] = ()


PAGE = EXPERIMENTS / "results-page.toml"


@cache
def sections(path: Path = PAGE) -> tuple[Section, ...]:
    """Return the sections on live experiments in the order of the page. Raises BadInput."""
    return check(_Page, read_toml(path), str(path)).section


@cache
def verdicts(path: Path = PAGE) -> tuple[Verdict, ...]:
    """Return the rows of the opening table in order. Raises BadInput."""
    return check(_Page, read_toml(path), str(path)).verdict


def figures() -> Iterable[str]:
    """Return the figures that an experiment may belong to."""
    return dict.fromkeys(figure for section in sections() for figure in section.figures)


class Paper(Strict):
    """A `[[paper]]` table."""

    figure: Annotated[str, one_of(figures)]
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
    """What is measured: a congestion control, `slots`, `best-tcp`, or a strategy on a cluster."""
    against: str = ""
    """What it is compared with, of the same kinds."""
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
