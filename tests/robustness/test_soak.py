"""The soak test finds what grows, and nothing else."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from machine.errors import EntrainError
from robustness import soak
from robustness.soak import course, held, slopes


def test_what_a_process_holds_is_counted() -> None:
    before, ended = held(os.getpid()), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with Path("/dev/null").open():
            block = os.urandom(1 << 24)
            after = held(os.getpid())
    finally:
        ended.set()
        thread.join()
    assert after["descriptors"] == before["descriptors"] + 1
    assert after["threads"] == before["threads"] + 1
    assert after["memory"] - before["memory"] > len(block) / 2


def test_what_grows_is_told_from_noise() -> None:
    rng = random.Random(1)
    times_s = [10.0 * number for number in range(200)]
    samples = [
        {
            "flat": 100.0,
            "noisy": 100.0 + rng.gauss(0, 5),
            "full soon": 100.0 if number > 20 else 5.0 * number,
            "leaks": 100.0 + 0.5 * number + rng.gauss(0, 5),
            "one descriptor a minute": 30.0 + number // 6,
        }
        for number in range(200)
    ]
    found = slopes(times_s, samples)
    assert {name for name, each in found.items() if not each["flat"]} == {"leaks", "one descriptor a minute"}
    assert abs(found["leaks"]["per_hour"] - 180) < 20


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (EntrainError("no room"), "no room"),
    ],
)
@pytest.mark.parametrize("within", ["job", "sample"])
def test_what_was_seen_before_the_end_is_told(
    end: BaseException, problem: str, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "EVERY_S", 0.0)
    monkeypatch.setattr(soak, "SAMPLE_S", 0.0)
    done: dict[str, int] = {"job": 0, "sample": 0}

    def one(what: str) -> dict[str, float]:
        done[what] += 1
        if what == within and done[what] > 10:
            raise end
        return {"memory": 1.0 * done[what]}

    def job(_: int) -> None:
        one("job")

    found = course(3600, job, lambda: one("sample"), lambda _: None)
    assert found.problem == problem
    assert found.jobs == 10
    assert [sample["memory"] for sample in found.samples] == list(range(1, len(found.times_s) + 1))
    assert slopes(found.times_s, found.samples)["memory"]["per_hour"] > 0
