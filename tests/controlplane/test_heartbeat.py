"""A switch is asked again and again: the first failure ends that, and slow answers are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from controlplane import heartbeat
from controlplane.p4client import Unreachable


def reports(answers: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Return what is reported, and after how many answers. Answer n takes `answers[n]` s; then one fails."""
    now = 0.0
    script: Iterator[float] = iter(answers)
    given = 0
    found: list[tuple[int, bool]] = []

    async def ask() -> None:
        nonlocal now, given
        took = next(script, None)
        if took is None:
            raise Unreachable("gone")
        now += took
        given += 1

    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0)
    with pytest.raises(Unreachable, match="gone"):
        asyncio.run(heartbeat.keep_asking(ask, lambda slow: found.append((given, slow))))
    return found


def test_most_of_the_latest_answers_being_slow_is_reported_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast, slow = heartbeat.SLOW_S / 2, heartbeat.SLOW_S * 2
    assert reports([fast] * 9, monkeypatch) == []
    assert reports([fast, slow, slow, fast, fast, fast, slow, slow, fast], monkeypatch) == []
    assert reports([fast, slow, fast, slow, slow, *[fast] * 6], monkeypatch) == [(5, True), (10, False)]


def test_an_answer_that_is_due_is_waited_for_beside_the_next_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise Unreachable("no answer")
        await asyncio.Event().wait()

    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0)
    with pytest.raises(Unreachable, match="no answer"):
        asyncio.run(heartbeat.keep_asking(ask, lambda _: None))
