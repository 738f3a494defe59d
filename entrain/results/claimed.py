"""The papers' claims (`claims.toml`), each with our value and a verdict, computed from published rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from entrain.paper import Kind
from entrain.results.verdicts import Verdict, kind_of, verdict
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
    of: Selection
    """The rows of our value; `figure` is a column, too."""
    against: Selection | None = None
    """The rows that it is compared with, other columns being equal."""
    show: Literal["value", "percent", "change", "ratio"] = "value"
    """`change` from `against` in percent, or how many times `against` is of it (`ratio`)."""
    form: str = ".2f"
    kind: Kind | None = None
    """What its figures are, where the words do not say so."""
    why: str = ""
    """Why it is so, in one line. Claims with a reason open the results."""


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


@cache
def claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """Return all claims. Raises BadInput, also for an id that two claims have."""
    known = check(_Claims, read_toml(path), str(path)).claim
    for claim, number in Counter(each.id for each in known).items():
        if number > 1:
            raise BadInput(f"{path}: {number} claims have the id {claim!r}; give each its own")
    return known


def values_of(experiment: str) -> dict[str, str]:
    """Return the papers' values by claim."""
    return {claim.text: claim.value for claim in claims() if claim.experiment == experiment}


def judged_of(experiment: str, rows: Sequence[Row]) -> list[Judged]:
    """Return the claims that rows of one experiment have a value for."""
    known = (judged(claim, {experiment: rows}) for claim in claims() if claim.experiment == experiment)
    return [each for each in known if each is not None]


def judged(claim: Claim, rows: Mapping[str, Sequence[Row]]) -> Judged | None:
    """Return a claim with our value; None if rows (by experiment) have none."""
    known = [row for row in rows.get(claim.experiment, ()) if row.seed is None and row.how != "paper"]
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
    """Return our value; the range of several."""
    if claim.show == "change":
        values = [100 * (one.value / other.value - 1) for one, other in zip(ours, theirs, strict=True)]
        form, suffix = "+.1f", " %"
    elif claim.show == "ratio":
        values = [
            other.value / one.value if one.value else float("inf")
            for one, other in zip(ours, theirs, strict=True)
        ]
        form, suffix = claim.form, ""
    elif claim.show == "percent":
        values, form, suffix = [100 * row.value for row in ours], ".1f", " %"
    else:
        values, form, suffix = [row.value for row in ours], claim.form, ""
        if len(ours) == 1 and ours[0].half is not None:
            suffix = f" ± {ours[0].half:{form.lstrip('+')}}"
            if ours[0].unit == "%":
                suffix += " %"
    ends = dict.fromkeys(f"{value:{form}}" for value in (min(values), max(values)))
    return " to ".join(ends) + suffix
