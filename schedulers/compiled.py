"""One decorator for the compiled kernels, so that they keep their types for the checker.

Machine code is cached in $XDG_CACHE_HOME/entrain (default ~/.cache/entrain), where that can be written, under
a hash of the sources: numba by itself looks at a kernel's own file only and would go on using old code of a
kernel that calls a changed one in another file. A function that others compile says "compiles this".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Routes = NDArray[np.int32]
"""Links of each flow, shape (flows, hops), padded with -1 behind the last one."""


def _cache_directory() -> Path:
    digest = hashlib.sha256(numba.__version__.encode())
    root = Path(__file__).resolve().parent.parent
    for package in ("schedulers", "simulation"):
        for source in sorted((root / package).rglob("*.py")):
            content = source.read_bytes()
            if b"compiles this" in content or b"@compiled" in content:
                digest.update(content)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "entrain" / f"kernels-{digest.hexdigest()[:16]}"


def _set_up_cache() -> bool:
    """Whether there is a directory for the cache: numba refuses to import a kernel that it cannot cache."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return True
    try:
        directory = _cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home
        return False
    numba.config.CACHE_DIR = str(directory)
    return os.access(directory, os.W_OK)


CACHED = _set_up_cache()
"""Whether machine code is kept; if not, each process compiles anew."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, with IEEE arithmetic (results repeat bit for bit), cached on disk."""
    return cast("Callable[P, R]", numba.njit(cache=CACHED)(function))
