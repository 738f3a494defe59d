"""Progressive filling: feasible, and every flow meets a full link on which nobody is faster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.coflow.filling import (
    common_factor,
    equal_share,
    link_loads,
    max_min,
    progressive_fill,
    squeeze,
)


def random_network(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    n_links, n_flows = int(rng.integers(2, 12)), int(rng.integers(1, 40))
    links = np.full((n_flows, 4), -1, np.int32)
    for row in links:
        hops = int(rng.integers(1, min(4, n_links) + 1))
        row[:hops] = rng.permutation(n_links)[:hops]
    return links, np.arange(n_flows), rng.uniform(0.1, 10.0, n_links)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_max_min_gives_each_flow_a_bottleneck(seed: int) -> None:
    links, flows, capacity = random_network(seed)
    rate = np.zeros(len(flows))
    max_min(links, flows, capacity, rate)
    load = np.zeros(len(capacity))
    link_loads(links, flows, rate, load)
    assert (load <= capacity * (1 + 1e-9)).all()
    for f in flows:
        route = links[f][links[f] >= 0]
        sharers = [max(rate[g] for g in flows if link in links[g]) for link in route]
        full = load[route] >= capacity[route] * (1 - 1e-9)
        assert any(
            is_full and rate[f] >= fastest * (1 - 1e-9)
            for is_full, fastest in zip(full, sharers, strict=True)
        )


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_equal_share_is_feasible_and_below_max_min_at_the_worst_flow(seed: int) -> None:
    links, flows, capacity = random_network(seed)
    equal, fair = np.zeros(len(flows)), np.zeros(len(flows))
    equal_share(links, flows, capacity, equal)
    max_min(links, flows, capacity, fair)
    load = np.zeros(len(capacity))
    link_loads(links, flows, equal, load)
    assert (load <= capacity * (1 + 1e-9)).all()
    assert equal.min() == pytest.approx(fair.min())


def test_weights_are_kept_until_a_link_is_full() -> None:
    links = np.array([[0, 1], [0, -1], [1, -1]], np.int32)
    rate, residual = np.zeros(3), np.array([3.0, 10.0])
    progressive_fill(links, np.arange(3), np.array([2.0, 1.0, 0.0]), residual, rate)
    assert rate == pytest.approx([2.0, 1.0, 0.0])
    assert residual == pytest.approx([0.0, 8.0])


def test_the_common_factor_fills_one_link() -> None:
    assert common_factor(np.array([4.0, 9.0, 5.0]), np.array([2.0, 3.0, 0.0])) == 2.0
    assert common_factor(np.array([4.0]), np.array([0.0])) == np.inf


def test_squeeze_scales_by_the_worst_link() -> None:
    links = np.array([[0, 1], [1, -1]], np.int32)
    rate = np.array([4.0, 4.0])
    squeeze(np.arange(2), links, np.array([2.0, 8.0]), rate)
    assert rate == pytest.approx([2.0, 4.0])
