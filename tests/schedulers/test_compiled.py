"""The clock of kernels."""

from __future__ import annotations

import itertools

import pytest

from schedulers import compiled


class Dispatcher:
    """Takes a signature on its first call."""

    def __init__(self, function: object) -> None:
        self.overloads: list[str] = []

    def __call__(self) -> None:
        self.overloads = ["()"]


def test_the_clock_stands_still_while_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(compiled.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(compiled, "_loaded", lambda: Dispatcher)
    monkeypatch.setattr(compiled._Kernel, "preparing_s", 0.0)
    kernel = compiled.compiled(lambda: None)
    kernel()  # ticks 0 and 1
    assert compiled.clock_s() == 2.0 - 1.0
    kernel()  # tick 3, and none behind
    assert compiled.clock_s() == 4.0 - 1.0
