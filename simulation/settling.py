"""Advance flows at constant rates, as every transport does between two decisions."""

from __future__ import annotations

import numpy as np

from schedulers.compiled import Floats, Ints, compiled
from simulation.flows import CoflowTable, FlowTable
from simulation.usage import Usage

TOLERANCE = 1e-9
"""A flow is done when a smaller fraction of its size is left."""


@compiled
def _settle(
    rows: Ints,
    first: Ints,
    last: Ints,
    since: Floats,
    sent: Floats,
    total: Floats,
    remaining: Floats,
    rate: Floats,
    done: Floats,
    size: Floats,
    now: float,
) -> None:
    """Advance the coflows `rows` to `now`: update bytes left, completion times of flows, and bytes sent."""
    for c in rows:
        elapsed = now - since[c]
        left = 0.0
        for f in range(first[c], last[c]):
            if remaining[f] > 0.0:
                if rate[f] > 0.0:
                    rest = remaining[f] - rate[f] * elapsed
                    if rest <= TOLERANCE * size[f]:
                        done[f] = min(since[c] + remaining[f] / rate[f], now)
                        rest = 0.0
                    remaining[f] = rest
                left += remaining[f]
        since[c] = now
        sent[c] = total[c] - left


@compiled
def _predict(
    first: Ints, last: Ints, since: Floats, remaining: Floats, rate: Floats, finish: Floats, speed: Floats
) -> None:
    """Write when each coflow will be done at its current rates, and its current speed, bytes/s."""
    for c in range(len(first)):
        longest = 0.0
        speed[c] = 0.0
        for f in range(first[c], last[c]):
            if remaining[f] > 0.0:
                speed[c] += rate[f]
                longest = max(longest, remaining[f] / rate[f] if rate[f] > 0.0 else np.inf)
        finish[c] = since[c] + longest


def settle(rows: Ints, now: float, coflows: CoflowTable, flows: FlowTable, usage: Usage | None) -> None:
    """Account for the coflows `rows` from their last update to `now` (s): bytes, waiting time and link
    usage."""
    ints, floats = coflows.ints, coflows.floats
    if usage is not None:
        for c in rows:
            usage.add(flows, int(ints("first")[c]), int(ints("last")[c]), float(floats("since")[c]), now)
    idle = rows[floats("speed")[rows] == 0.0]
    floats("waiting")[idle] += now - floats("since")[idle]
    _settle(
        rows,
        ints("first"),
        ints("last"),
        floats("since"),
        floats("sent"),
        floats("total"),
        flows.remaining,
        flows.rate,
        flows.done,
        flows.size,
        now,
    )


def predict(coflows: CoflowTable, flows: FlowTable) -> None:
    """Set each coflow's end and speed from its flows' current rates."""
    _predict(
        coflows.ints("first"),
        coflows.ints("last"),
        coflows.floats("since"),
        flows.remaining,
        flows.rate,
        coflows.floats("finish"),
        coflows.floats("speed"),
    )
