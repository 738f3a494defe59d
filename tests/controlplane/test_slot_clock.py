"""The switches' clocks are kept right: after an error, and when the clock of this machine is set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from controlplane import slot_clock
from controlplane.slot_clock import keep_clocks
from machine.errors import EntrainError


def told(monkeypatch: pytest.MonkeyPatch, tell: Callable[[int], float | None], times: int) -> list[str]:
    """Keep clocks until they have been told so many times; return the events.

    `tell` gets how often they were told before. It returns by how many seconds this machine's clock is set
    then, or None for a switch that does not answer. An hour passes between two times of themselves.
    """
    monkeypatch.setattr(slot_clock, "INTERVAL_S", 3600.0)
    monkeypatch.setattr(slot_clock, "RETRY_S", 0.0)
    monkeypatch.setattr(slot_clock, "_LOOK_S", 0.001)
    count, set_ns, events = 0, 0, list[str]()
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + set_ns)

    async def set_clocks() -> None:
        nonlocal count, set_ns
        count += 1
        if count == times:
            raise asyncio.CancelledError
        later_s = tell(count - 1)
        if later_s is None:
            raise EntrainError("leaf1: no answer")
        loop = asyncio.get_running_loop()

        def step() -> None:
            nonlocal set_ns
            set_ns += round(later_s * 1e9)

        loop.call_later(0.01, step)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(keep_clocks(set_clocks, events.append), 30))
    return events


def test_switches_follow_when_the_machines_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, lambda before: (2.5, -0.1)[before % 2], times=4) == []


def test_a_failure_is_told_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    events = told(monkeypatch, lambda before: None if before != 3 else 1.0, times=7)
    assert events == ["leaf1: no answer"] * 2  # and again after it had worked
