"""Data with known sums: they add up, they are told apart, and a wrong element is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.pattern import Pattern


def unit_of(pattern: Pattern, elements: int, dtype: str, weight: int) -> np.ndarray:
    unit = np.zeros(elements, dtype)
    pattern.fill(unit, weight)
    return unit


@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 40_000),
    st.sampled_from(["int32", "float32"]),
    st.lists(st.integers(1, 15), min_size=1, max_size=20),
)
def test_a_sum_is_the_tile_times_the_sum_of_weights(
    seed: int, elements: int, dtype: str, weights: list[int]
) -> None:
    pattern = Pattern(seed, 4, 4, elements, dtype)
    total = np.zeros(elements, dtype)
    for weight in weights:
        total += unit_of(pattern, elements, dtype, weight)
    assert pattern.first_difference(total, sum(weights)) is None
    assert pattern.first_difference(total, sum(weights) + 1) == 0


@given(st.data(), st.integers(1, 40_000))
def test_any_flipped_bit_is_found_where_it_is(data: st.DataObject, elements: int) -> None:
    pattern = Pattern(1, 4, 4, elements, "int32")
    unit = unit_of(pattern, elements, "int32", 7)
    where = data.draw(st.integers(0, elements - 1))
    unit.view(np.uint32)[where] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert pattern.first_difference(unit, 7) == where


def test_sums_of_four_thousand_ranks_are_exact_in_float32() -> None:
    pattern = Pattern(3, 4000, 1, 5000, "float32")
    weights = pattern.weights(0)[:, 0]
    exact = unit_of(pattern, 5000, "int32", 1).astype(np.int64) * int(weights.sum())
    total = np.zeros(5000, "float32")
    for weight in weights:
        total += unit_of(pattern, 5000, "float32", int(weight))
    assert (total.astype(np.int64) == exact).all()


def test_weights_tell_ranks_units_iterations_and_seeds_apart() -> None:
    pattern = Pattern(5, 16, 16, 8, "int32")
    first, again, next_, other = (
        pattern.weights(0),
        Pattern(5, 16, 16, 8, "int32").weights(0),
        pattern.weights(1),
        Pattern(6, 16, 16, 8, "int32").weights(0),
    )
    assert (first == again).all()
    assert first.min() >= 1
    assert first.max() <= 15
    for different in (next_, other, first.T):
        assert (first != different).mean() > 0.8
    assert len({tuple(row) for row in first}) == len({tuple(column) for column in first.T}) == 16


@pytest.mark.parametrize("shift", [1, 1024, 65536 // 4])
def test_shifted_data_are_wrong(shift: int) -> None:
    pattern = Pattern(1, 2, 2, 50_000, "int32")
    assert pattern.first_difference(np.roll(unit_of(pattern, 50_000, "int32", 2), shift), 2) is not None
