"""One decorator for the compiled kernels, so that they keep their types for the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Routes = NDArray[np.int32]
"""Links of each flow, shape (flows, hops), padded with -1 behind the last one."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, with IEEE arithmetic (results repeat bit for bit), cached on disk."""
    return cast("Callable[P, R]", numba.njit(cache=True)(function))
