"""Parrot: coflow scheduling of training jobs whose sizes nobody knows (Li et al., IEEE TCC 2020, Algorithm
1)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from schedulers.coflow import View
from schedulers.compiled import Floats, Ints, Routes, compiled
from schedulers.filling import common_factor, link_loads, progressive_fill

Conservation = Literal["factor", "filling", "none"]


def least_attained_service(sent: Floats, completed: Ints, order: Ints) -> int:
    """Return the job with the least per-coflow attained service, LPCAS (5.1): A = S / Z, ties to the earlier.

    Nothing completed (Z = 0) counts as infinite service, whatever was sent.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        service = np.where(completed > 0, sent / np.maximum(completed, 1), np.inf)
    return int(np.lexsort((order, service))[0])


def occupancy_ratio(jobs: int, sent: float, limit: float) -> float:
    """Return θ = min(θ_max, (1/jobs)^(1/(ln(sent + 1) + 1))), equation 10; `sent` in bytes."""
    exponent = 1.0 / (math.log(sent + 1.0) + 1.0)
    return min(limit, math.pow(1.0 / jobs, exponent))


def inferred_weight(jobs: int, theta: float) -> float:
    """Return W_max = θ/(1-θ) (jobs - 1), equation 11; a job alone has weight 1."""
    return 1.0 if jobs == 1 else theta / (1.0 - theta) * (jobs - 1)


@compiled
def _scaled_rates(
    first: Ints,
    last: Ints,
    size: Floats,
    remaining: Floats,
    gamma: Floats,
    share: Floats,
    links: Routes,
    rate: Floats,
) -> None:
    for c in range(len(first)):
        scale = share[c] / gamma[c] if gamma[c] > 0.0 else 0.0
        for f in range(first[c], last[c]):
            rate[f] = size[f] * scale if remaining[f] > 0.0 else 0.0


class Parrot:
    """Infers the job with the shortest remaining time and gives it the share θ of what jobs compete for.

    `theta_max` bounds that share (θ_max, 0.9 in the paper). `bytes_per_unit` converts the view's sizes into
    the bytes of equation 10. `conservation` uses what is left: "factor" scales all flows alike until one link
    is full (step 10), "filling" goes on for the flows that still can grow, "none" leaves it (Parrot-wo-WC).
    """

    def __init__(
        self, *, theta_max: float = 0.9, conservation: Conservation = "factor", bytes_per_unit: float = 1.0
    ) -> None:
        if not 0.0 < theta_max < 1.0:
            raise ValueError(f"theta_max is {theta_max}; it must lie between 0 and 1")
        if conservation not in ("factor", "filling", "none"):
            raise ValueError(f"conservation is {conservation!r}; it must be factor, filling or none")
        self.theta_max = theta_max
        self.conservation = conservation
        self.bytes_per_unit = bytes_per_unit
        self.name = {"factor": "parrot", "filling": "parrot-filling", "none": "parrot-wo-wc"}[conservation]

    def shares(self, view: View) -> Floats:
        """Return each coflow's part W / ΣW of its rates alone, steps 3 to 9; jobs with several active coflows
        split theirs."""
        jobs, index, coflows = np.unique(view.job, return_inverse=True, return_counts=True)
        sent = np.zeros(len(jobs))
        completed = np.zeros(len(jobs), np.int64)
        order = np.full(len(jobs), np.iinfo(np.int64).max)
        sent[index] = view.job_sent
        completed[index] = view.job_completed
        np.minimum.at(order, index, view.order)
        theta = occupancy_ratio(len(jobs), float(sent.sum()) * self.bytes_per_unit, self.theta_max)
        weight = np.ones(len(jobs))
        weight[least_attained_service(sent, completed, order)] = inferred_weight(len(jobs), theta)
        result: Floats = (weight / weight.sum() / coflows)[index]
        return result

    def allocate(self, view: View) -> None:
        """Write the rates of all flows."""
        if not len(view):
            return
        _scaled_rates(
            view.first,
            view.last,
            view.size,
            view.remaining,
            view.bottleneck,
            self.shares(view),
            view.links,
            view.rate,
        )
        if self.conservation == "none":
            return
        flows = view.active_flows()
        load = np.zeros_like(view.capacity)
        link_loads(view.links, flows, view.rate, load)
        factor = common_factor(view.capacity, load)
        if not math.isfinite(factor):
            return
        view.rate[flows] *= factor
        if self.conservation == "filling":
            residual = np.maximum(view.capacity - load * factor, 0.0)
            progressive_fill(view.links, flows, view.rate[flows], residual, view.rate)

    def review_after(self, view: View) -> float:
        """Never: decisions are made when coflows become valid or complete."""
        return math.inf
