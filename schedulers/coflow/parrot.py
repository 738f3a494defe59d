"""Parrot: coflow scheduling for training jobs of unknown size (Li et al., IEEE TCC 2020, Algorithm 1)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from schedulers.coflow.allocation import bottleneck_time, take
from schedulers.coflow.filling import common_factor, link_loads, progressive_fill
from schedulers.coflow.view import Network, View
from schedulers.compiled import Floats, Ints, compiled

Conservation = Literal["factor", "filling", "ordered", "none"]


def by_attained_service(sent: Floats, completed: Ints, order: Ints) -> Ints:
    """Return the jobs sorted by attained service per coflow, A = S / Z (LPCAS, 5.1): least first, ties by
    `order`.

    A job without a completed coflow (Z = 0) counts as having infinite service, whatever it has sent.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        service = np.where(completed > 0, sent / np.maximum(completed, 1), np.inf)
    return np.lexsort((order, service))


def occupancy_ratio(jobs: int, sent: float, limit: float) -> float:
    """Return θ = min(θ_max, (1/jobs)^(1/(ln(sent + 1) + 1))), equation 10; `sent` in bytes."""
    exponent = 1.0 / (math.log(sent + 1.0) + 1.0)
    return min(limit, math.pow(1.0 / jobs, exponent))


def inferred_weight(jobs: int, theta: float) -> float:
    """Return W_max = θ/(1-θ) (jobs - 1), equation 11; a job alone has weight 1."""
    return 1.0 if jobs == 1 else theta / (1.0 - theta) * (jobs - 1)


@compiled
def _scale_in_order(ranking: Ints, network: Network) -> None:
    """Scale up the rates of each coflow in turn by the largest factor that its links still allow."""
    need = np.zeros(len(network.capacity))
    for c in ranking:
        first, last = network.first[c], network.last[c]
        gamma = bottleneck_time(network.links, network.rate, first, last, network.residual, need)
        if 0.0 < gamma < np.inf:
            for f in range(first, last):
                extra = network.rate[f] / gamma
                network.rate[f] += extra
                take(network, f, extra)


class Parrot:
    """Infer the job with the shortest remaining time and give it the share θ of the contended bandwidth.

    `theta_max` bounds that share (θ_max, 0.9 in the paper). `bytes_per_unit` converts the view's sizes into
    the bytes of equation 10. `conservation` says who gets the remaining bandwidth. "factor" scales all flows
    by one factor until a link is full (step 10). "filling" then continues with the flows that can still grow.
    "ordered" scales coflow by coflow in the order of step 3 and then fills. "none" leaves it unused
    (Parrot-wo-WC).
    """

    name = "parrot"

    def __init__(
        self, *, theta_max: float = 0.9, conservation: Conservation = "factor", bytes_per_unit: float = 1.0
    ) -> None:
        if not 0.0 < theta_max < 1.0:
            raise ValueError(f"theta_max is {theta_max}; it must lie between 0 and 1")
        if conservation not in get_args(Conservation):
            raise ValueError(
                f"conservation is {conservation!r}; it must be one of {', '.join(get_args(Conservation))}"
            )
        self.theta_max = theta_max
        self.conservation = conservation
        self.bytes_per_unit = bytes_per_unit

    def shares(self, view: View) -> tuple[Floats, Ints]:
        """Return each coflow's share W / ΣW of the rates it would have alone, and the coflows in the order of
        step 3 (steps 3 to 9). A job with several active coflows splits its share among them."""
        jobs, index, coflows = np.unique(view.job, return_inverse=True, return_counts=True)
        sent = np.zeros(len(jobs))
        completed = np.zeros(len(jobs), np.int64)
        order = np.full(len(jobs), np.iinfo(np.int64).max)
        sent[index] = view.job_sent
        completed[index] = view.job_completed
        np.minimum.at(order, index, view.order)
        theta = occupancy_ratio(len(jobs), float(sent.sum()) * self.bytes_per_unit, self.theta_max)
        ranking = by_attained_service(sent, completed, order)
        weight = np.ones(len(jobs))
        weight[ranking[0]] = inferred_weight(len(jobs), theta)
        share: Floats = (weight / weight.sum() / coflows)[index]
        return share, np.lexsort((view.order, np.argsort(ranking)[index]))

    def allocate(self, view: View) -> None:
        """Write the rates of all flows."""
        if not len(view):
            return
        share, ranking = self.shares(view)
        for c in range(len(view)):
            rows = slice(view.first[c], view.last[c])
            scaled = view.size[rows] * (share[c] / view.bottleneck[c])
            view.rate[rows] = np.where(view.remaining[rows] > 0.0, scaled, 0.0)
        if self.conservation == "none":
            return
        flows = view.active_flows()
        load = np.zeros_like(view.capacity)
        link_loads(view.links, flows, view.rate, load)
        if self.conservation == "ordered":
            network = view.network(np.maximum(view.capacity - load, 0.0))
            _scale_in_order(ranking, network)
            residual = network.residual
        else:
            factor = common_factor(view.capacity, load)
            view.rate[flows] *= factor
            residual = np.maximum(view.capacity - load * factor, 0.0)
        if self.conservation != "factor":
            progressive_fill(view.links, flows, view.rate[flows], residual, view.rate)

    def review_after(self, view: View) -> float:
        """Return infinity: decisions are made only when coflows become valid or complete."""
        return math.inf
