"""Coflows drawn with the distributions of Facebook's trace: its shares come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulation.facebook import facebook_coflows
from simulation.jobs import Coflow
from simulation.traces import MB, CoflowTrace, parse_coflow_benchmark, read_coflow_benchmark

SHARES = {"short, narrow": 309, "long, narrow": 90, "short, wide": 59, "long, wide": 68}
"""Of the trace's 526 coflows: long from 5 MB in the longest flow on, wide above 50 flows."""


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
    for name, count in SHARES.items():
        share = count / 526
        deviation = np.sqrt(share * (1.0 - share) / number.total())
        assert number[name] / number.total() == pytest.approx(share, abs=3.0 * deviation), name
    # The trace: short and narrow 0.01, long and narrow 0.11, short and wide 0.81, long and wide 99.1 %.
    assert megabytes["long, wide"] / megabytes.total() > 0.97
    assert megabytes["short, wide"] > megabytes["long, narrow"] > megabytes["short, narrow"]
    flows = sum(trace.flows for trace in traces) / len(traces)
    assert 706397 / 1.5 < flows < 706397 * 1.5
    hours = [trace.jobs[-1].arrival / 3600.0 for trace in traces]
    assert 0.75 < np.mean(hours) < 1.25
    assert {(trace.ports, len(trace.jobs)) for trace in traces} == {(150, 526)}


def test_drawn_coflows_have_the_traces_shares() -> None:
    check([drawn(seed) for seed in range(6)])


def test_the_trace_itself_passes(public_trace: Callable[[str], Path]) -> None:
    check([read_coflow_benchmark(public_trace("FB2010-1Hr-150-0.txt"))])


def test_a_seed_draws_the_same_coflows_again() -> None:
    assert facebook_coflows(3) == facebook_coflows(3) != facebook_coflows(4)
