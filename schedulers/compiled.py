"""One decorator for the compiled kernels, so that they keep their types for the checker.

numba is loaded when the first kernel is called: most commands import kernels and call none, and loading takes
as long as all else that they do. Machine code is cached in $XDG_CACHE_HOME/entrain (default
~/.cache/entrain), where that can be written, under a hash of the sources: numba by itself looks at a kernel's
own file only and would go on using old code of a kernel that calls a changed one in another file. A function
that others compile says "compiles this".
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Routes = NDArray[np.int32]
"""Links of each flow, shape (flows, hops), padded with -1 behind the last one."""


@cache
def _cache_directory() -> str | None:
    """Where machine code is kept; None if that cannot be written."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return chosen
    digest = hashlib.sha256(version("numba").encode())
    root = Path(__file__).resolve().parent.parent
    for package in ("schedulers", "simulation"):
        for source in sorted((root / package).rglob("*.py")):
            content = source.read_bytes()
            if b"compiles this" in content or b"@compiled" in content:
                digest.update(content)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = home / "entrain" / f"kernels-{digest.hexdigest()[:16]}"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home
        return None
    return str(directory) if os.access(directory, os.W_OK) else None


def cached() -> bool:
    """Whether machine code is kept; if not, each process compiles anew."""
    return _cache_directory() is not None


@cache
def _loaded() -> Callable[[Callable[..., object]], Any]:
    """Load numba, and return what compiles a function."""
    import numba
    from numba.extending import typeof_impl

    if (directory := _cache_directory()) is not None:
        numba.config.CACHE_DIR = directory
    # a kernel that calls another one finds our object by its name
    typeof_impl.register(_Kernel)(lambda kernel, context: typeof_impl(kernel.dispatcher, context))
    # numba refuses a kernel that it cannot cache
    return cast("Callable[[Callable[..., object]], Any]", numba.njit(cache=cached()))


class _Kernel(Generic[P, R]):
    """A function that is compiled on its first call, by Python or by another kernel."""

    preparing_s = 0.0
    """Time of calls that had to load or compile a kernel."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        update_wrapper(self, function)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of the function."""
        return _loaded()(self._function)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        began, known = time.perf_counter(), self._signatures() if "dispatcher" in self.__dict__ else -1
        result = cast("R", self.dispatcher(*arguments, **named))
        if known != self._signatures():  # it was loaded or compiled for these types
            _Kernel.preparing_s += time.perf_counter() - began
        return result

    def _signatures(self) -> int:
        return len(getattr(self.dispatcher, "overloads", ()))


def clock_s() -> float:
    """Return the time of a clock that stands still while a kernel's first call loads or compiles it, s."""
    return time.perf_counter() - _Kernel.preparing_s


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, with IEEE arithmetic (results repeat bit for bit), cached on disk."""
    return _Kernel(function)
