"""Time limits, which a slow machine can lengthen: each is multiplied by the variable ENTRAIN_PATIENCE."""

from __future__ import annotations

import functools
import math
import os

from machine.errors import BadInput

VARIABLE = "ENTRAIN_PATIENCE"


@functools.cache
def _factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor <= 1000:
        raise BadInput(f"{VARIABLE}={text}: give a factor of 1 to 1000")
    return factor


def patience(seconds: float) -> float:
    """Return the limit of a wait that takes at most `seconds` on a usual machine. Raises BadInput."""
    return seconds * _factor()
