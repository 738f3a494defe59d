"""Whether a figure reproduces a paper's: one rule for all claims.

A figure's *effect* is what it is away from no difference: 0 for a change in percent, 1 for a ratio. Ours
reproduces the paper's if it has the same sign, is clear of its own interval, and is within a third of the
paper's effect; partly, if it is at least a third of it, or more than it. Where the paper has hardly an effect
(less than 5 %), ours should have none. An *amount* reproduces within a tenth, and partly within a third. A
*bound* is an amount that may as well be lower: up to a third above it is reproduced, and up to three times
partly.
*Fewer* compares a number before and after: two thirds of the paper's factor reproduce it, and one third
partly.

Several figures reproduce the paper's if each one does. A range has two: its ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["reproduced", "partly", "not"]
Kind = Literal["change", "ratio", "amount", "bound", "fewer"]
"""What figures of a claim are."""

NEAR = 0.05
"""What counts as no effect."""

_FIGURE = re.compile(r"(×\s*)?([-+−]?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*(%|x\b)?")
_REMARK = re.compile(r"\([^)]*\)")


@dataclass(frozen=True)
class _Figure:
    value: float
    spread: float
    """Half of its interval."""


def verdict(paper: str, here: str, kind: Kind) -> Verdict:
    """Return whether `here` reproduces `paper`, both as the page shows them.

    Without a figure in `here`, it does not. Raises ValueError if the paper's text has no figure.
    """
    theirs = _figures(paper)
    if not theirs:
        raise ValueError(f"{paper!r} has no figure")
    if kind == "fewer":
        ours = _figures(here)
        if len(ours) != 2:
            return "not"
        factor = ours[0].value / max(ours[1].value, 1e-9)
        return _graded(min(each.value for each in theirs), 1.5 * factor, 3 * factor)
    found = [each for group in here.split(";") for each in _compared(theirs, _figures(group), kind)]
    if found and all(each == "reproduced" for each in found):
        return "reproduced"
    return "not" if all(each == "not" for each in found) else "partly"


def kind_of(claim: str, paper: str) -> Kind:
    """Return what a figure is by the claim's and the paper's words; without any, it is a ratio."""
    if "at most" in claim or "at most" in paper:
        return "bound"
    if "times fewer" in paper:
        return "fewer"
    if "%" in paper:
        return "change" if re.search(r"[-+−]\d", paper) else "amount"
    return "ratio"


def _figures(text: str) -> list[_Figure]:
    return [
        _Figure(float(number.replace("−", "-")), float(spread or 0))
        for _, number, spread, _ in _FIGURE.findall(_REMARK.sub("", text))
    ]


def _compared(theirs: list[_Figure], ours: list[_Figure], kind: Kind) -> Iterable[Verdict]:
    """Compare figures in pairs, or all of one side with the only one of the other."""
    if len(theirs) == len(ours):
        pairs = list(zip(theirs, ours, strict=True))
    else:
        pairs = [(their, our) for their in theirs for our in ours]
    for their, our in pairs:
        yield _judged(their.value, our, kind)


def _judged(paper: float, ours: _Figure, kind: Kind) -> Verdict:
    if kind == "bound":
        return _graded(ours.value, paper * 4 / 3, paper * 3)
    if kind == "amount":
        return _graded(abs(ours.value - paper), abs(paper) / 10, abs(paper) / 3)
    neutral, unit = (0.0, 100.0) if kind == "change" else (1.0, 1.0)
    effect, our_effect, spread = (paper - neutral) / unit, (ours.value - neutral) / unit, ours.spread / unit
    if abs(effect) < NEAR:
        return _graded(abs(our_effect), NEAR, 2 * NEAR)
    if effect * our_effect <= 0 or abs(our_effect) <= spread or abs(our_effect) < abs(effect) / 3:
        return "not"
    return "reproduced" if abs(our_effect - effect) <= abs(effect) / 3 else "partly"


def _graded(distance: float, whole: float, part: float) -> Verdict:
    return "reproduced" if distance <= whole else "partly" if distance <= part else "not"
