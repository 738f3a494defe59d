"""The soak test finds what grows, and nothing else."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from benchmarks.soak import held, slopes


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
