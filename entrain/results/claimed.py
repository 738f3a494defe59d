"""The papers' claims (`claims.toml`), each with our value and a verdict, computed from published rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from entrain.results.verdicts import Kind, Verdict, kind_of, verdict
from machine.errors import BadInput
from machine.rows import Row, chosen, parameters
from machine.toml import Strict, check, read_toml

CLAIMS = Path(__file__).with_name("claims.toml")

Selection = dict[str, str | Annotated[tuple[str, ...], Field(strict=False)]]
"""Values of columns and parameters of rows; one of them, if there are several."""


class Claim(Strict):
    """A `[[claim]]` table: what a paper says, and which of our values stands beside it."""

    id: str
    paper: Literal["slots", "parrot", "vclos", "cassini", "mltcp"]
    figure: str
    """The figure, table or section of the paper."""
    text: str
    value: str = ""
    """What the paper says; empty: it says nothing of this comparison."""
    experiment: str
    live: bool = False
    """Whether the experiment is a live one; else it is simulated."""
    of: Selection
    """The rows of our value; `figure` is a column, too."""
    against: Selection | None = None
    """The rows that it is compared with, other columns being equal."""
    show: Literal["value", "list", "percent", "change", "ratio"] = "value"
    """`change` from `against` in percent, or how many times `against` is of it (`ratio`). Of several values
    the range, or all of them (`list`)."""
    form: str = ".2f"
    kind: Kind | None = None
    """What its figures are, where the words do not say so."""
    why: str = ""
    """Why it is so, in one line. Claims with a reason open the results."""

    @property
    def of_what(self) -> str:
        """The experiment, as rows are named by."""
        return named(self.experiment, live=self.live)


class _Claims(Strict):
    claim: Annotated[tuple[Claim, ...], Field(strict=False)]


@dataclass(frozen=True)
class Judged:
    """A claim beside our value."""

    claim: Claim
    here: str
    verdict: Verdict | None
    """None: the paper says nothing."""
    rows: tuple[Row, ...]
    """What our value is computed from."""


def named(experiment: str, *, live: bool) -> str:
    """Return the name of an experiment's rows: those of live and of simulated ones may have one name."""
    return f"{'live' if live else 'simulated'}/{experiment}"


@cache
def claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """Return all claims. Raises BadInput, also for an id that two claims have."""
    known = check(_Claims, read_toml(path), str(path)).claim
    for claim, number in Counter(each.id for each in known).items():
        if number > 1:
            raise BadInput(f"{path}: {number} claims have the id {claim!r}; give each its own")
    return known


def values_of(experiment: str) -> dict[str, str]:
    """Return the papers' values by claim about a simulated experiment."""
    name = named(experiment, live=False)
    return {claim.text: claim.value for claim in claims() if claim.of_what == name}


def judged_of(experiment: str, rows: Sequence[Row]) -> list[Judged]:
    """Return the claims that rows of one simulated experiment have a value for."""
    name = named(experiment, live=False)
    known = (judged(claim, {name: rows}) for claim in claims() if claim.of_what == name)
    return [each for each in known if each is not None]


def judged(claim: Claim, rows: Mapping[str, Sequence[Row]]) -> Judged | None:
    """Return a claim with our value; None if rows (by name, see `named`) have none."""
    known = [row for row in rows.get(claim.of_what, ()) if row.seed is None and row.how != "paper"]
    ours = chosen(known, claim.of)
    theirs = [_other(row, claim, known) for row in ours] if claim.against is not None else []
    if not ours or None in theirs:
        return None
    others = [row for row in theirs if row is not None]
    here = _shown(claim, ours, others)
    judged = None
    if claim.value:
        judged = verdict(claim.value, here, claim.kind or kind_of(claim.text, claim.value))
    return Judged(claim, here, judged, (*ours, *others))


def _other(row: Row, claim: Claim, rows: Iterable[Row]) -> Row | None:
    """Return the row that differs from `row` just by what `against` names."""
    assert claim.against is not None
    named = claim.against.keys()
    same = {
        name: row.at(name)
        for name in ("policy", "routing", "control", "job", "figure", *parameters(row.parameters))
        if name not in named
    }
    return next(iter(chosen(rows, {**same, **claim.against})), None)


def _shown(claim: Claim, ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """Return our value; the range of several, or all of them."""
    form = claim.form
    if claim.show == "change":
        values = [_over(one.value, other.value) for one, other in zip(ours, theirs, strict=True)]
        values, form, suffix = [100 * (value - 1) for value in values], "+.1f", " %"
    elif claim.show == "ratio":
        values = [_over(other.value, one.value) for one, other in zip(ours, theirs, strict=True)]
        suffix = ""
    elif claim.show == "percent":
        values, form, suffix = [100 * row.value for row in ours], ".1f", " %"
    else:
        values, suffix = [row.value for row in ours], " %" if ours[0].unit == "%" and "+" in form else ""
        if len(ours) == 1 and ours[0].half is not None:
            suffix = f" ± {ours[0].half:{form.lstrip('+')}}{suffix}"
    if not all(map(math.isfinite, values)):
        return "undefined"
    if claim.show == "list":
        return ", ".join(f"{value:{form}}" for value in values) + suffix
    return " to ".join(dict.fromkeys(f"{value:{form}}" for value in (min(values), max(values)))) + suffix


def _over(value: float, base: float) -> float:
    return value / base if base else math.inf
