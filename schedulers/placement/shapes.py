"""The shapes of a virtual Clos: l virtual leaves times s virtual spines, for a job of l * s GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

Fits = Callable[[int, int], bool]
"""Whether the empty cluster holds l virtual leaves with s virtual spines."""


def shapes(gpus: int, unit: int, pattern: str, fits: Fits) -> tuple[tuple[int, int], ...]:
    """Return all (l, s) with l > 1, l * s = gpus and s a multiple of `unit`, fewest virtual leaves first.

    Only those that fit, and on which source routing keeps `pattern` free of contention. Source: vClos, A.2;
    all divisors instead of powers of two, so that no shape is missed.
    """
    return tuple(
        (leaves, gpus // leaves)
        for leaves in range(2, gpus // unit + 1)
        if gpus % leaves == 0
        and gpus // leaves % unit == 0
        and fits(leaves, gpus // leaves)
        and (pattern != "halving-doubling" or leafwise_halving(leaves, gpus // leaves))
    )


def size_with_shape(
    gpus: int, unit: int, pattern: str, fits: Fits, most: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the smallest size from `gpus` to `most` that has a shape, and its shapes; (0, ()) if none has.

    Source: vClos, 6.1 (the smallest composite above N).
    """
    for size in range(-(-gpus // unit) * unit, most + 1, unit):
        found = shapes(size, unit, pattern, fits)
        if found:
            return size, found
    return 0, ()


@lru_cache(maxsize=4096)
def leafwise_halving(leaves: int, width: int) -> bool:
    """Whether recursive halving-doubling is a leaf-wise permutation on `leaves` leaves of `width` ranks.

    It is wherever the width is a power of two, and with two leaves. With other widths partners may lie so
    that two flows of one virtual spine go to the same leaf: 4 leaves of 20 ranks are the smallest such with
    servers of 4 GPUs. Source: vClos, definition 1 (in its testable form) and 5.3.
    """
    if leaves <= 2 or width & (width - 1) == 0:
        return True
    power = 1 << ((leaves * width).bit_length() - 1)
    ranks = np.arange(power)
    for bit in range(power.bit_length() - 1):
        to = (ranks ^ 1 << bit) // width
        across = to != ranks // width
        arrivals = to[across] * width + ranks[across] % width
        if len(np.unique(arrivals)) != len(arrivals):
            return False
    return True
