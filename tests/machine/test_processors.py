"""The machine's processors: kept awake, and what they did."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from machine.processors import Use, awake


class Times(NamedTuple):
    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_a_demand_for_no_latency_is_held_for_as_long_as_the_context(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    with awake(device) as held:
        assert held
        assert struct.unpack("=i", device.read_bytes()) == (0,)


def test_without_the_device_or_permission_nothing_is_held(tmp_path: Path) -> None:
    with awake(tmp_path / "missing" / "device") as held:
        assert not held


def test_use_counts_stolen_time_apart_and_guests_once() -> None:
    before = Times(user=10, nice=0, system=5, idle=100, iowait=0, steal=1, guest=4)
    after = Times(user=14, nice=1, system=8, idle=107, iowait=1, steal=5, guest=8)
    use = Use.between(before, after)
    assert use.busy == pytest.approx(12 / 20)
    assert use.stolen == pytest.approx(4 / 20)


def test_no_time_is_no_use() -> None:
    times = Times(1, 1, 1, 1, 1, 1, 1)
    assert Use.between(times, times) == Use(0.0, 0.0)
