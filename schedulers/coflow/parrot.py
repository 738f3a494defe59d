"""Parrot: coflow scheduling for training jobs of unknown size (Li et al., IEEE TCC 2020, Algorithm 1)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from schedulers.coflow.allocation import bottleneck_time, take
from schedulers.coflow.filling import common_factor, link_loads, progressive_fill
from schedulers.coflow.view import Network, View
from schedulers.compiled import Floats, Ints, Routes, compiled

Conservation = Literal["factor", "filling", "ordered", "none"]
Scope = Literal["link", "network"]
Service = Literal["completed", "started"]


def by_attained_service(sent: Floats, completed: Ints, order: Ints, service: Service = "completed") -> Ints:
    """Return the jobs sorted by attained service per coflow, A = S / Z (LPCAS, 5.1): least first, ties by
    `order`.

    A job without a completed coflow (Z = 0) counts as having infinite service, whatever it has sent. With
    `service` "started" the coflow that runs counts, too: A = S / (Z + 1), which needs no such rule.
    """
    if service == "started":
        return np.lexsort((order, sent / (completed + 1)))
    attained = np.where(completed > 0, sent / np.maximum(completed, 1), np.inf)
    return np.lexsort((order, attained))


def occupancy_ratio(jobs: int, sent: float, limit: float) -> float:
    """Return θ = min(θ_max, (1/jobs)^(1/(ln(sent + 1) + 1))), equation 10; `sent` in bytes."""
    exponent = 1.0 / (math.log(sent + 1.0) + 1.0)
    return min(limit, math.pow(1.0 / jobs, exponent))


def inferred_weight(jobs: int, theta: float) -> float:
    """Return W_max = θ/(1-θ) (jobs - 1), equation 11; a job alone has weight 1."""
    return 1.0 if jobs == 1 else theta / (1.0 - theta) * (jobs - 1)


@compiled
def competing_weights(weight: Floats, flows: Ints, coflow: Ints, links: Routes, met: Floats) -> Floats:
    """Return for each of `flows` (F,) the sum of the weights of the coflows on the worse of its links.

    `weight` (C,) is per coflow, `coflow` (F,) names each flow's. A coflow counts once on a link, however many
    of the flows it has there; `flows` go coflow by coflow. `met` (L,) is scratch space.
    """
    met[:] = 0.0
    last = np.full(len(met), -1)
    for i in range(len(flows)):
        for link in links[flows[i]]:
            if link < 0:
                break
            if last[link] != coflow[i]:
                last[link] = coflow[i]
                met[link] += weight[coflow[i]]
    most = np.zeros(len(flows))
    for i in range(len(flows)):
        for link in links[flows[i]]:
            if link < 0:
                break
            most[i] = max(most[i], met[link])
    return most


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
    the bytes of equation 10. `scope` says among which coflows weights act: "link", those on the worse link of
    a flow ("when the two jobs meet on the same link", 2.5); "network", all of them (step 8 as printed).
    `conservation` says who gets the remaining bandwidth. "factor" scales all flows by one factor until a link
    is full (step 10). "filling" then continues with the flows that can still grow. "ordered" scales coflow by
    coflow in the order of step 3 and then fills. "none" leaves it unused (Parrot-wo-WC). `service` is that of
    `by_attained_service`.
    """

    name = "parrot"

    def __init__(
        self,
        *,
        theta_max: float = 0.9,
        conservation: Conservation = "factor",
        bytes_per_unit: float = 1.0,
        scope: Scope = "link",
        service: Service = "completed",
    ) -> None:
        if not 0.0 < theta_max < 1.0:
            raise ValueError(f"theta_max is {theta_max}; it must lie between 0 and 1")
        for name, given, known in (
            ("conservation", conservation, get_args(Conservation)),
            ("scope", scope, get_args(Scope)),
            ("service", service, get_args(Service)),
        ):
            if given not in known:
                raise ValueError(f"{name} is {given!r}; it must be one of {', '.join(known)}")
        self.theta_max = theta_max
        self.conservation = conservation
        self.bytes_per_unit = bytes_per_unit
        self.scope = scope
        self.service: Service = service

    def weights(self, view: View) -> tuple[Floats, Ints]:
        """Return each coflow's weight W, and the coflows in the order of step 3 (steps 3 to 6). A job with
        several active coflows splits its weight among them."""
        jobs, index, coflows = np.unique(view.job, return_inverse=True, return_counts=True)
        sent = np.zeros(len(jobs))
        completed = np.zeros(len(jobs), np.int64)
        order = np.full(len(jobs), np.iinfo(np.int64).max)
        sent[index] = view.job_sent
        completed[index] = view.job_completed
        np.minimum.at(order, index, view.order)
        theta = occupancy_ratio(len(jobs), float(sent.sum()) * self.bytes_per_unit, self.theta_max)
        ranking = by_attained_service(sent, completed, order, self.service)
        weight = np.ones(len(jobs))
        weight[ranking[0]] = inferred_weight(len(jobs), theta)
        split: Floats = (weight / coflows)[index]
        return split, np.lexsort((view.order, np.argsort(ranking)[index]))

    def allocate(self, view: View) -> None:
        """Write the rates of all flows."""
        if not len(view):
            return
        weight, ranking = self.weights(view)
        flows, load = view.active_flows(), np.zeros_like(view.capacity)
        owner = np.empty(len(view.rate), np.int64)
        for c, (first, last) in enumerate(zip(view.first, view.last, strict=True)):
            view.rate[first:last], owner[first:last] = 0.0, c
        coflow = owner[flows]
        competing = (
            competing_weights(weight, flows, coflow, view.links, load)
            if self.scope == "link"
            else weight.sum()
        )
        view.rate[flows] = view.size[flows] / view.bottleneck[coflow] * weight[coflow] / competing
        if self.conservation == "none":
            return
        load[:] = 0.0
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
