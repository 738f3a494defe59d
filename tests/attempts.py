"""Measurements on a machine that does other things, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 4
SHOWN = 2000
"""Characters of each result in a failure."""


def undisturbed(measure: Callable[[], T], fits: Callable[[T], bool], attempts: int = ATTEMPTS) -> T:
    """Measure until the result fits: a process that has no processor for a while disturbs a measurement, but
    hardly each of `attempts`. Fails with the results if none fits."""
    found: list[T] = []
    for _ in range(attempts):
        found.append(measure())
        if fits(found[-1]):
            return found[-1]
    told = "\n".join(f"{result}"[-SHOWN:] for result in found)
    raise AssertionError(f"none of {attempts} measurements fits:\n{told}")
