"""Confidence intervals against a table of Student's t, and their meaning."""

from __future__ import annotations

import numpy as np
import pytest

from machine.interval import Interval, interval, percentile, relative


def test_the_interval_is_students() -> None:
    """Quantile of 4 degrees of freedom at 97.5 %: 2.7764 (any table of t)."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert found.half == pytest.approx(2.7764 * np.sqrt(2.5) / np.sqrt(5), rel=1e-4)


def test_one_value_has_no_interval() -> None:
    assert interval([7.0]).half is None
    assert interval([7.0]).show() == "7.00"
    assert interval([6.9, 7.1]).show(".1f") == "7.0 ± 1.3"


def test_the_interval_has_the_mean_in_95_of_100_samples() -> None:
    draws = np.random.default_rng(1).normal(10.0, 3.0, (2000, 5))
    found = [interval(list(row)) for row in draws]
    held = np.mean([abs(each.mean - 10) <= (each.half or 0) for each in found])
    assert 0.93 <= held <= 0.97


def test_a_change_is_shown_as_a_factor() -> None:
    slower = relative({1: 2.0, 2: 2.0}, {1: 5.9, 2: 6.1})
    assert slower.factor().startswith("× 3.00 ± ")
    assert relative({1: 4.0}, {1: 3.0}).factor() == "× 0.75"


def test_no_interval_of_a_time_reaches_below_0() -> None:
    """Two seeds that are far apart have an interval of several times their mean."""
    wide = Interval(2.0, 3.5)
    assert wide.show(".1f") == "2.0 (0.0 to 5.5)"
    assert wide.bar() == (2.0, 3.5)
    assert Interval(2.0, 0.5).bar() == (0.5, 0.5)
    assert Interval(2.0, None).bar() == (0.0, 0.0)


def test_no_interval_of_a_change_reaches_below_minus_100_percent() -> None:
    assert Interval(-0.2, 0.9).percent() == "-20.0 % (-100 to +70.0 %)"
    assert Interval(-0.2, 0.1).percent() == "-20.0 ± 10.0 %"
    assert Interval(-0.2, 0.1).clear and not Interval(-0.2, 0.9).clear and not Interval(-0.2, None).clear


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (99, 100)])
def test_a_percentile_needs_a_value_above_it(percent: float, least: int) -> None:
    assert percentile([1.0] * (least - 1), percent) is None
    assert percentile([1.0] * least, percent) == 1.0
    assert percentile([], percent) is None
