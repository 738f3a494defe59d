"""Common multiples of periods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulers.cassini.circle import MOST, common_multiple, samples, wrapped


@given(st.lists(st.floats(0.05, 2.0), min_size=1, max_size=8))
def test_a_circle_has_whole_iterations_of_all_and_no_period_gets_shorter(periods: list[float]) -> None:
    common = common_multiple(periods)
    assert common.periods * common.turns == pytest.approx(common.perimeter)
    grown = common.periods / np.array(periods)
    assert grown.min() >= 1.0 - 1e-9
    assert grown.max() == pytest.approx(1.0 + common.stretch)
    assert common.perimeter <= (1.0 + 1e-6) * max(MOST * common.periods.min(), common.periods.max())


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.001, 0.0031, 1.0 / 3.0]))
def test_a_short_multiple_is_found_exactly(a: int, b: int, unit: float) -> None:
    common = common_multiple([a * unit, b * unit])
    assert common.perimeter == pytest.approx(np.lcm(a, b) * unit, rel=1e-6)
    assert common.stretch < 1e-6


def test_a_long_multiple_is_avoided_by_waiting_less_than_a_hundredth() -> None:
    """138 and 148 ms have 10.2 s; 14 and 13 iterations take nearly the same time."""
    common = common_multiple([0.138, 0.148])
    assert common.turns.tolist() == [14, 13]
    assert common.perimeter == pytest.approx(1.932)
    assert 0.0 < common.stretch < 0.01


def test_the_fastest_job_has_five_degrees_of_its_own_circle() -> None:
    assert samples(0.12, np.array([0.04, 0.06]), 72) == 216


def test_a_shift_of_a_whole_period_is_none() -> None:
    assert wrapped(0.35, 0.15) == pytest.approx(0.05)
    assert -1e-18 % 0.15 == 0.15
    assert wrapped(-1e-18, 0.15) == wrapped(0.15 * (1 - 1e-16), 0.15) == 0.0
