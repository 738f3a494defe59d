"""The policies that Parrot is compared with: an order of coflows, and a rule for the bandwidth that the first
coflow leaves unused."""

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
    """Serve the first coflow in an order; `conservation` says who gets the bandwidth that it leaves unused.

    "ordered": the other coflows follow in order; those that MADD skipped share the rest equally, and what
    then remains goes to single flows in order. "shared": the flows of the other coflows share it max-min
    fairly. "factor": the other coflows get the rates that they would have alone, times one common factor, as
    in Parrot's step 10. "none": it stays unused, as in the "-wo-WC" variants of Parrot's evaluation.
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
        """Return the order in which the remaining bandwidth is given away."""
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
        """Return infinity: the order changes only when coflows arrive or complete."""
        return np.inf


class Fifo(PriorityPolicy):
    """First in, first out: the coflow that became valid first is served first."""

    name = "fifo"

    def ranking(self, view: View) -> Ints:
        """Rank by the order in which coflows became valid."""
        return np.argsort(view.order, kind="stable")


class Varys(PriorityPolicy):
    """Smallest effective bottleneck first, with MADD (Varys, SIGCOMM 2014, 5).

    With `dynamic`, coflows are ranked by the bottleneck of their remaining bytes, as in the paper; without,
    by their bottleneck at arrival, as in the authors' simulator.
    """

    name = "varys"

    def __init__(self, *, dynamic: bool = True) -> None:
        super().__init__()
        self.dynamic = dynamic

    def ranking(self, view: View) -> Ints:
        """Rank by effective bottleneck, then by order."""
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
        """Rank by order of arrival."""
        return np.argsort(view.order, kind="stable")


class Mcs(PriorityPolicy):
    """Multi-stage coflow scheduling (Tian et al., INFOCOM 2018), which the slot scheduler is compared with.

    This version schedules the active stages in a primal-dual order with MADD. The original orders whole jobs
    by a linear program and knows all sizes in advance. Here, as for every online policy, future iterations
    are unknown.
    """

    name = "mcs"

    def ranking(self, view: View) -> Ints:
        """Rank by the primal-dual order of the remaining bytes."""
        by_order = np.argsort(view.order, kind="stable")
        ordered = primal_dual_order(
            view.first[by_order], view.last[by_order], view.links, view.remaining, view.capacity
        )
        result: Ints = by_order[ordered]
        return result


class LeastBytesSent(PriorityPolicy):
    """Aalo as in Parrot's evaluation (6): a job's coflows count as one; the job that has sent the fewest
    bytes goes first.

    This version has no queues, so jobs that have sent nearly the same take turns. `DClas` has queues.
    """

    name = "aalo"

    def ranking(self, view: View) -> Ints:
        """Rank by the bytes that the job has sent, then by order."""
        return np.lexsort((view.order, view.job_sent))


class LeastCompletedCoflows(PriorityPolicy):
    """LCCF (Parrot, 6): the job with the fewest completed coflows goes first."""

    name = "lccf"

    def ranking(self, view: View) -> Ints:
        """Rank by the coflows that the job has completed, then by order."""
        return np.lexsort((view.order, view.job_completed))


class DClas(PriorityPolicy):
    """Aalo's D-CLAS (SIGCOMM 2015, 4): queues by bytes sent, FIFO within a queue, no sizes needed.

    `entity` says what is queued. "coflow", as Aalo defines D-CLAS: each coflow, by its own bytes. "job", as
    Parrot describes Aalo (1): all coflows of a job together, by the job's bytes; within a job, coflows follow
    their dependencies, which is the order in which they became valid.

    Queue q holds entities that have sent less than `first_threshold` * `factor`^q bytes. Queues have strict
    priority, as in the authors' simulator. With `weighted`, queue q gets the share (queues - q) / Σ of each
    link, and the rest is given away by priority, as in the paper.
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
        """Rank by queue, then by the entity's arrival, then by the coflow's."""
        arrival = view.order if self.entity == "coflow" else view.job
        return np.lexsort((view.order, arrival, self.queue(view)))

    def allocate(self, view: View) -> None:
        """Write the rates by strict priority of queues, after their weighted shares if those are on."""
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
        """Return when the next entity crosses its queue's threshold (s)."""
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


def first_end(view: View) -> float:
    """Return when the first flow ends at these rates, s."""
    flows = view.active_flows()
    flows = flows[view.rate[flows] > 0.0]
    return float(np.min(view.remaining[flows] / view.rate[flows])) if len(flows) else np.inf


class JobPriorities:
    """Strict priority by job on every link; flows of a job share max-min fairly what jobs before it leave.

    `rank` (jobs,) is by the view's job numbers, smallest first. Switches have a few queues and so a few
    ranks; with as many as jobs this is the most that priorities can do.
    """

    name = "job-priorities"

    def __init__(self, rank: Ints) -> None:
        self.rank = rank

    def allocate(self, view: View) -> None:
        """Write the rates, job by job."""
        max_min_in_order(np.lexsort((view.order, self.rank[view.job])), view.network(view.capacity.copy()))

    def review_after(self, view: View) -> float:
        """Return when the first flow ends (s): others may then send faster."""
        return first_end(view)


class FairSharing:
    """Per-flow max-min fairness: what an ideal TCP would give, unaware of coflows."""

    name = "fair"

    def allocate(self, view: View) -> None:
        """Write the max-min fair rates of all flows."""
        for a, b in zip(view.first, view.last, strict=True):
            view.rate[a:b] = 0.0
        max_min(view.links, view.active_flows(), view.capacity, view.rate)

    def review_after(self, view: View) -> float:
        """Return when the first flow ends (s)."""
        return first_end(view)
