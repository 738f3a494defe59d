"""The rivals of Parrot: an order of coflows, and a rule for the bandwidth that the first of them leaves."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from schedulers.coflow.allocation import (
    backfill_in_order,
    bottleneck_time,
    equal_in_order,
    madd_in_order,
    max_min_in_order,
    primal_dual_order,
    share_rest,
)
from schedulers.coflow.filling import common_factor, link_loads, max_min, progressive_fill
from schedulers.coflow.view import View
from schedulers.compiled import Floats, Ints

Allocation = Literal["madd", "equal", "max-min"]
Conservation = Literal["ordered", "shared", "factor", "none"]
Entity = Literal["coflow", "job"]

_ALLOCATE = {"madd": madd_in_order, "equal": equal_in_order, "max-min": max_min_in_order}


class PriorityPolicy:
    """Serves the first coflow in an order; `conservation` says what becomes of the bandwidth it leaves.

    "ordered": the others follow in order; coflows that MADD had to skip share what is left, and what is still
    left is given to single flows in order. "shared": the others' flows share it max-min fairly. "factor": the
    others get their rates alone in the network, times one common factor, as in Parrot's step 10. "none":
    nobody gets it, the "-wo-WC" variants of Parrot's evaluation.
    """

    name = "priority"

    def __init__(self, *, conservation: Conservation = "ordered", allocation: Allocation = "madd") -> None:
        if conservation not in get_args(Conservation):
            raise ValueError(
                f"conservation is {conservation!r}; it must be one of {', '.join(get_args(Conservation))}"
            )
        self.conservation = conservation
        self.allocation: Allocation = allocation

    def ranking(self, view: View) -> Ints:
        """Return the indices of `view`'s coflows, first to be served first."""
        raise NotImplementedError

    def backfill_ranking(self, view: View, ranking: Ints) -> Ints:
        """Return the order in which what is left is given away."""
        return ranking

    def allocate(self, view: View) -> None:
        """Write the rates; see the class."""
        ranking, network = self.ranking(view), view.network(view.capacity.copy())
        serve = _ALLOCATE[self.allocation]
        if self.conservation == "ordered":
            serve(ranking, network)
            if self.allocation == "madd":
                share_rest(ranking, network)
            backfill_in_order(self.backfill_ranking(view, ranking), network)
            return
        serve(ranking[:1], network)
        rest = ranking[1:]
        flows = view.active_flows(rest)
        for c in rest:
            view.rate[view.first[c] : view.last[c]] = 0.0
        if self.conservation == "shared":
            progressive_fill(view.links, flows, np.ones(len(flows)), network.residual, view.rate)
        elif self.conservation == "factor":
            for c in rest:
                rows = slice(view.first[c], view.last[c])
                view.rate[rows] = np.where(
                    view.remaining[rows] > 0.0, view.size[rows] / view.bottleneck[c], 0.0
                )
            load = np.zeros_like(view.capacity)
            link_loads(view.links, flows, view.rate, load)
            view.rate[flows] *= common_factor(network.residual, load)

    def review_after(self, view: View) -> float:
        """Never: the order changes only when coflows come, go, or bytes are counted at such a moment."""
        return np.inf


class Fifo(PriorityPolicy):
    """First valid, first served."""

    name = "fifo"

    def ranking(self, view: View) -> Ints:
        """By order of validity."""
        return np.argsort(view.order, kind="stable")


class Varys(PriorityPolicy):
    """Smallest effective bottleneck first with MADD (Varys, SIGCOMM 2014, 5).

    `dynamic` ranks by the bottleneck of what remains, as the paper says; else by that at arrival, as its
    simulator does.
    """

    name = "varys"

    def __init__(self, *, dynamic: bool = True) -> None:
        super().__init__()
        self.dynamic = dynamic

    def ranking(self, view: View) -> Ints:
        """By effective bottleneck, then by order."""
        gamma = view.bottleneck
        if self.dynamic:
            need = np.zeros(len(view.capacity))
            gamma = np.array(
                [
                    bottleneck_time(view.links, view.remaining, a, b, view.capacity, need)
                    for a, b in zip(view.first, view.last, strict=True)
                ]
            )
        return np.lexsort((view.order, gamma))

    def backfill_ranking(self, view: View, ranking: Ints) -> Ints:
        """By order of arrival."""
        return np.argsort(view.order, kind="stable")


class Mcs(PriorityPolicy):
    """Multi-stage coflow scheduling (Tian et al., INFOCOM 2018), the slot scheduler's rival.

    It schedules the stages that are active in a primal-dual order with MADD. The original orders whole jobs
    by a linear program with all sizes known in advance; here, as for every online policy, future iterations
    are not known.
    """

    name = "mcs"

    def ranking(self, view: View) -> Ints:
        """By the primal-dual order of what remains."""
        by_order = np.argsort(view.order, kind="stable")
        ordered = primal_dual_order(
            view.first[by_order], view.last[by_order], view.links, view.remaining, view.capacity
        )
        result: Ints = by_order[ordered]
        return result


class LeastBytesSent(PriorityPolicy):
    """Aalo as Parrot's evaluation has it (6): all coflows of a job as one, the least bytes sent first.

    It has no queues, so jobs that have sent nearly the same take turns; `DClas` has them.
    """

    name = "aalo"

    def ranking(self, view: View) -> Ints:
        """By bytes the job has sent, then by order."""
        return np.lexsort((view.order, view.job_sent))


class LeastCompletedCoflows(PriorityPolicy):
    """LCCF (Parrot, 6): the job with the least completed coflows first."""

    name = "lccf"

    def ranking(self, view: View) -> Ints:
        """By coflows the job has completed, then by order."""
        return np.lexsort((view.order, view.job_completed))


class DClas(PriorityPolicy):
    """Aalo's D-CLAS (SIGCOMM 2015, 4): queues by bytes sent, FIFO within a queue, no sizes needed.

    `entity` is what is queued. "coflow", as Aalo defines D-CLAS: each coflow by its own bytes. "job", as
    Parrot describes Aalo (1): all coflows of a job are one entity, ranked by the job's bytes; within it
    coflows follow their dependencies, that is the order in which they became valid.

    Queue q holds entities that have sent less than `first_threshold` * `factor`^q bytes. Queues are served by
    strict priority, as its authors' simulator does; with `weighted` queue q gets the share (queues - q) / Σ
    of each link, and what queues leave goes by priority, as the paper has it.
    """

    name = "d-clas"

    def __init__(
        self,
        *,
        entity: Entity = "coflow",
        queues: int = 10,
        first_threshold: float = 10 * 2**20,
        factor: float = 10.0,
        weighted: bool = False,
    ) -> None:
        if entity not in get_args(Entity):
            raise ValueError(f"entity is {entity!r}; it must be one of {', '.join(get_args(Entity))}")
        if queues < 1 or first_threshold <= 0 or factor <= 1:
            raise ValueError(
                "D-CLAS needs at least one queue, a positive first threshold and a factor above 1"
            )
        super().__init__(allocation="equal")
        self.entity = entity
        self.thresholds = first_threshold * factor ** np.arange(queues - 1)
        self.weighted = weighted

    def attained(self, view: View) -> Floats:
        """Return the bytes that each coflow's entity has sent."""
        return view.sent if self.entity == "coflow" else view.job_sent

    def queue(self, view: View) -> Ints:
        """Return the queue of each coflow, 0 first."""
        return np.searchsorted(self.thresholds, self.attained(view) * (1 + 1e-9), side="right")

    def ranking(self, view: View) -> Ints:
        """By queue, then by the entity's arrival, then by the coflow's."""
        arrival = view.order if self.entity == "coflow" else view.job
        return np.lexsort((view.order, arrival, self.queue(view)))

    def allocate(self, view: View) -> None:
        """Write the rates: strict priority of queues, or their weighted shares first."""
        if not self.weighted:
            super().allocate(view)
            return
        queue = self.queue(view)
        present = np.unique(queue)
        weights = {int(q): float(len(self.thresholds) + 1 - q) for q in present}
        ranking = self.ranking(view)
        left = np.zeros_like(view.capacity)
        for q in present:
            share = view.capacity * (weights[int(q)] / sum(weights.values()))
            equal_in_order(ranking[queue[ranking] == q], view.network(share))
            left += share
        backfill_in_order(ranking, view.network(left))

    def review_after(self, view: View) -> float:
        """When the next entity crosses its queue's threshold."""
        speed = np.array([view.rate[a:b].sum() for a, b in zip(view.first, view.last, strict=True)])
        if self.entity == "job":
            _, job = np.unique(view.job, return_inverse=True)
            speed = np.bincount(job, weights=speed)[job]
        queue = self.queue(view)
        sending = (speed > 0.0) & (queue < len(self.thresholds))
        if not sending.any():
            return np.inf
        left = self.thresholds[queue[sending]] - self.attained(view)[sending]
        return float(np.min(left / speed[sending]))


class FairSharing:
    """Per-flow max-min fairness: what a perfect TCP would give, blind to coflows."""

    name = "fair"

    def allocate(self, view: View) -> None:
        """Write the max-min fair rates of all flows."""
        for a, b in zip(view.first, view.last, strict=True):
            view.rate[a:b] = 0.0
        max_min(view.links, view.active_flows(), view.capacity, view.rate)

    def review_after(self, view: View) -> float:
        """When the first flow ends."""
        flows = view.active_flows()
        flows = flows[view.rate[flows] > 0.0]
        return float(np.min(view.remaining[flows] / view.rate[flows])) if len(flows) else np.inf
