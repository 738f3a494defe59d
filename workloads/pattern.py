"""Data whose sums are known in closed form, so that every result of a collective can be checked at low cost.

Element k of unit u of rank r in iteration t is `tile[k mod P] * weight(t, u, r)`, with a pseudo-random tile
of a prime number P of elements and pseudo-random weights from the seed. Any sum over ranks is then the tile
times the sum of their weights: one multiplication of a tile that stays in the processor's cache, and one
comparison with the buffer. All values are whole, and sums stay below 2^24 for up to 4,000 ranks, so that
float32 is exact too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[Any]  # int32 or float32

_PERIOD = 16381
"""Elements of the tile: the largest prime below 2^14, so 64 KiB, and no segment ends where the tile does."""
_LARGEST_VALUE = 251
_LARGEST_WEIGHT = 15
_SPLITMIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shifts and factors of its finaliser


class Pattern:
    """The data of one job: `units` units of `elements` elements each on `ranks` ranks."""

    def __init__(self, seed: int, ranks: int, units: int, elements: int, dtype: str) -> None:
        self._elements = elements
        self._seed = seed
        generator = np.random.default_rng(seed)
        self._tile = generator.integers(1, _LARGEST_VALUE + 1, min(_PERIOD, elements)).astype(dtype)
        self._cells = (np.arange(ranks)[:, None] * 2**32 + np.arange(units)).astype(np.uint64)

    def weights(self, iteration: int) -> npt.NDArray[np.int64]:
        """Return the weight of each rank and unit, of shape (ranks, units), from 1 to 15."""
        x: npt.NDArray[np.uint64] = self._cells + np.uint64(
            (self._seed * 1_000_003 + iteration * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        )
        for shift, factor in _SPLITMIX:
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return ((x >> np.uint64(33)) % np.uint64(_LARGEST_WEIGHT)).astype(np.int64) + 1

    def fill(self, unit: Buffer, weight: int) -> None:
        """Write one unit's values."""
        values = self._tile * self._tile.dtype.type(weight)
        for start in range(0, self._elements, len(values)):
            part = unit[start : start + len(values)]
            part[:] = values[: len(part)]

    def first_difference(self, unit: Buffer, weight: int) -> int | None:
        """Return the first element of the unit that does not match the weight, or None."""
        values = self._tile * self._tile.dtype.type(weight)
        for start in range(0, self._elements, len(values)):
            part = unit[start : start + len(values)]
            if not np.array_equal(part, values[: len(part)]):
                return start + int(np.argmax(part != values[: len(part)]))
        return None
