"""Coflows drawn with the distributions of Facebook's trace: what was published about it comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulation.facebook import facebook_coflows
from simulation.jobs import Coflow
from simulation.traces import MB, CoflowTrace, parse_coflow_benchmark, read_coflow_benchmark

SHARES = {"short, narrow": 0.60, "long, narrow": 0.16, "short, wide": 0.12, "long, wide": 0.12}
"""Of all coflows (Varys, SIGCOMM 2014): long from 5 MB in the longest flow on, wide above 50 flows."""


def drawn(seed: int) -> CoflowTrace:
    return parse_coflow_benchmark(facebook_coflows(seed).splitlines(), Path("drawn"))


def classes(traces: list[CoflowTrace]) -> tuple[Counter[str], Counter[str]]:
    """Return how many coflows each class has, and how many MB."""
    number, megabytes = Counter[str](), Counter[str]()
    for trace in traces:
        for job in trace.jobs:
            work = job.tasks[0].work
            assert isinstance(work, Coflow)
            length = "long" if work.size.max() >= 5 * MB else "short"
            name = f"{length}, {'wide' if len(work.size) > 50 else 'narrow'}"
            number[name] += 1
            megabytes[name] += round(work.bytes / MB)
    return number, megabytes


def check(traces: list[CoflowTrace]) -> None:
    number, megabytes = classes(traces)
    for name, share in SHARES.items():
        # Three standard deviations of so many draws, and what the paper's figures are rounded by.
        tolerance = 3.0 * np.sqrt(share * (1.0 - share) / number.total()) + 0.01
        assert number[name] / number.total() == pytest.approx(share, abs=tolerance), name
    # Varys: 0.01, 0.11, 0.88 and 99.0 % of the bytes.
    assert megabytes["long, wide"] / megabytes.total() > 0.97
    assert megabytes["short, wide"] > megabytes["long, narrow"] > megabytes["short, narrow"]
    flows = sum(trace.flows for trace in traces) / len(traces)
    assert 706397 / 1.5 < flows < 706397 * 1.5
    hours = [trace.jobs[-1].arrival / 3600.0 for trace in traces]
    assert 0.75 < np.mean(hours) < 1.25
    assert {(trace.ports, len(trace.jobs)) for trace in traces} == {(150, 526)}


def test_drawn_coflows_have_the_published_shares() -> None:
    check([drawn(seed) for seed in range(6)])


def test_the_published_trace_has_them_too(public_trace: Callable[[str], Path]) -> None:
    check([read_coflow_benchmark(public_trace("FB2010-1Hr-150-0.txt"))])


def test_a_seed_draws_the_same_coflows_again() -> None:
    assert facebook_coflows(3) == facebook_coflows(3) != facebook_coflows(4)
