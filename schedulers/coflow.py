"""Coflow scheduling: what a policy may observe, and the rivals of Parrot.

A policy is given a `View` of the coflows that can send now and writes a rate for each of their flows. It has
no clock and keeps no state about the network, so a simulator and a live controller can use the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from schedulers.compiled import Floats, Ints, Routes, compiled
from schedulers.filling import FULL, common_factor, link_loads, max_min, progressive_fill

Allocation = Literal["madd", "equal", "max-min"]
Conservation = Literal["ordered", "shared", "factor", "none"]
Entity = Literal["coflow", "job"]


class Network(NamedTuple):
    """A `View`'s arrays for compiled code, and `residual` (L,): what is left of each link, bytes/s."""

    first: Ints
    last: Ints
    links: Routes
    remaining: Floats
    rate: Floats
    capacity: Floats
    residual: Floats


@dataclass(slots=True)
class View:
    """The coflows that can send. Flows of coflow c are the rows first[c] to last[c] - 1 of the flow arrays.

    Per flow (F,): `size` and `remaining` bytes, `rate` bytes/s (the policy writes it), `links` (F, H) its
    route. Per coflow (C,): `order` in which they became valid (smaller first), `ident` the caller's number,
    `bottleneck` the effective completion time alone in the network (Γ of Parrot's O3, s), `sent` bytes, `job`
    number (smaller for a job that came first), and of the job `job_sent` bytes and `job_completed` coflows.
    `capacity` (L,) bytes/s per link.
    """

    capacity: Floats
    links: Routes
    size: Floats
    remaining: Floats
    rate: Floats
    first: Ints
    last: Ints
    order: Ints
    ident: Ints
    bottleneck: Floats
    sent: Floats
    job: Ints
    job_sent: Floats
    job_completed: Ints

    def __len__(self) -> int:
        return len(self.first)

    def network(self, residual: Floats) -> Network:
        """Return what compiled code needs of it; `residual` (L,) is what may be given away, bytes/s."""
        return Network(self.first, self.last, self.links, self.remaining, self.rate, self.capacity, residual)

    def active_flows(self, coflows: Ints | None = None) -> Ints:
        """Return the rows of the flows of `coflows` (all) that have bytes left."""
        chosen = range(len(self)) if coflows is None else coflows
        if not len(chosen):
            return np.empty(0, np.int64)
        rows = np.concatenate([np.arange(self.first[c], self.last[c]) for c in chosen])
        active: Ints = rows[self.remaining[rows] > 0.0]
        return active


class CoflowPolicy(Protocol):
    """Decides rates. `name` is what a user types."""

    name: str

    def allocate(self, view: View) -> None:
        """Write `view.rate` of every flow of every coflow in `view`."""

    def review_after(self, view: View) -> float:
        """Return after how many seconds at these rates the decision would change by itself (infinity:
        never)."""


@compiled
def bottleneck_time(
    links: Routes, volume: Floats, first: int, last: int, capacity: Floats, need: Floats
) -> float:
    """Return Γ = max over links of volume / capacity (Parrot eq. 26, Varys' effective bottleneck); infinity
    if a link is full.

    `need` (L,) is scratch space: zero on entry, zero on return.
    """
    gamma = 0.0
    for f in range(first, last):
        if volume[f] > 0.0:
            for link in links[f]:
                if link < 0:
                    break
                need[link] += volume[f]
    for f in range(first, last):
        for link in links[f]:
            if link < 0:
                break
            if need[link] > 0.0:
                gamma = max(gamma, need[link] / capacity[link] if capacity[link] > 0.0 else np.inf)
                need[link] = 0.0
    return gamma


@compiled
def take(network: Network, f: int, rate: float) -> None:
    """Take `rate` from what the links of flow `f` have left; less than FULL of a link counts as nothing."""
    for link in network.links[f]:
        if link < 0:
            break
        network.residual[link] -= rate
        if network.residual[link] < FULL * network.capacity[link]:
            network.residual[link] = 0.0


@compiled
def _most(network: Network, f: int) -> float:
    """Return what flow `f` could still send."""
    most = np.inf
    for link in network.links[f]:
        if link < 0:
            break
        most = min(most, network.residual[link])
    return most


@compiled
def madd_in_order(ranking: Ints, network: Network) -> None:
    """Minimum allocation for desired duration (Varys, 5.3): each coflow in turn finishes all its flows at
    once.

    A coflow that needs a full link gets nothing. Writes `rate`, takes from `residual`, as all of these do.
    """
    need = np.zeros(len(network.capacity))
    for c in ranking:
        first, last = network.first[c], network.last[c]
        gamma = bottleneck_time(network.links, network.remaining, first, last, network.residual, need)
        scale = 1.0 / gamma if 0.0 < gamma < np.inf else 0.0
        for f in range(first, last):
            network.rate[f] = network.remaining[f] * scale
            if network.rate[f] > 0.0:
                take(network, f, network.rate[f])


@compiled
def _share_equally(coflows: Ints, network: Network) -> None:
    """Flows of `coflows` that have no full link get the least of left / flows over their links, in one go."""
    count = np.zeros(len(network.capacity), np.int64)
    for c in coflows:
        for f in range(network.first[c], network.last[c]):
            network.rate[f] = 0.0
            if network.remaining[f] > 0.0 and _most(network, f) > 0.0:
                network.rate[f] = np.inf
                for link in network.links[f]:
                    if link < 0:
                        break
                    count[link] += 1
    for c in coflows:
        for f in range(network.first[c], network.last[c]):
            if network.rate[f] > 0.0:
                for link in network.links[f]:
                    if link < 0:
                        break
                    network.rate[f] = min(network.rate[f], network.residual[link] / count[link])
    for c in coflows:
        for f in range(network.first[c], network.last[c]):
            if network.rate[f] > 0.0:
                take(network, f, network.rate[f])


@compiled
def equal_in_order(ranking: Ints, network: Network) -> None:
    """Each coflow in turn shares what is left equally among its flows. Needs no sizes."""
    for i in range(len(ranking)):
        _share_equally(ranking[i : i + 1], network)


@compiled
def share_rest(ranking: Ints, network: Network) -> None:
    """The coflows that got nothing yet share what is left equally, as if they were one."""
    unserved = np.array([network.rate[network.first[c] : network.last[c]].sum() == 0.0 for c in ranking])
    _share_equally(ranking[unserved], network)


@compiled
def max_min_in_order(ranking: Ints, network: Network) -> None:
    """Each coflow in turn shares what is left max-min fairly among its flows. Needs no sizes."""
    for c in ranking:
        flows = np.arange(network.first[c], network.last[c])
        network.rate[flows] = 0.0
        weight = np.where(network.remaining[flows] > 0.0, 1.0, 0.0)
        progressive_fill(network.links, flows, weight, network.residual, network.rate)
        for f in flows:
            take(network, f, 0.0)


@compiled
def backfill_in_order(ranking: Ints, network: Network) -> None:
    """Give what is left to flows one by one, by coflow: work conservation. Adds to `rate`."""
    for c in ranking:
        for f in range(network.first[c], network.last[c]):
            if network.remaining[f] > 0.0:
                extra = _most(network, f)
                if extra > 0.0:
                    network.rate[f] += extra
                    take(network, f, extra)


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


@compiled
def primal_dual_order(first: Ints, last: Ints, links: Routes, remaining: Floats, capacity: Floats) -> Ints:
    """Order coflows by the primal-dual rule for concurrent open shops: who loads the fullest link most goes
    last.

    From the last place on: on the most loaded link, the coflow with the least weight per load goes last; the
    others on that link lose the weight it had there. A 4-approximation of the total completion time (Agarwal
    et al., SIGCOMM 2018).
    """
    n, n_links = len(first), len(capacity)
    load = np.zeros(n_links)
    scratch = np.zeros(n_links)
    size = 0
    for c in range(n):
        size += (last[c] - first[c]) * links.shape[1]
    pair_coflow, pair_link = np.empty(size, np.int64), np.empty(size, np.int64)
    pair_load = np.empty(size)
    begin = np.zeros(n + 1, np.int64)
    pairs = 0
    for c in range(n):
        for f in range(first[c], last[c]):
            for link in links[f]:
                if link < 0:
                    break
                scratch[link] += remaining[f] / capacity[link]
        for f in range(first[c], last[c]):
            for link in links[f]:
                if link < 0:
                    break
                if scratch[link] > 0.0:
                    pair_coflow[pairs], pair_link[pairs], pair_load[pairs] = c, link, scratch[link]
                    load[link] += scratch[link]
                    scratch[link] = 0.0
                    pairs += 1
        begin[c + 1] = pairs
    by_link = np.argsort(pair_link[:pairs])
    start = np.searchsorted(pair_link[:pairs][by_link], np.arange(n_links + 1))
    weight = np.ones(n)
    placed = np.zeros(n, np.bool_)
    order = np.empty(n, np.int64)
    for place in range(n - 1, -1, -1):
        full = np.argmax(load)
        chosen, chosen_load, least = -1, 1.0, np.inf
        for i in range(start[full], start[full + 1]):
            p = by_link[i]
            c = pair_coflow[p]
            # Equal ratios: the one that became active later goes last.
            if not placed[c] and weight[c] / pair_load[p] <= least:
                chosen, chosen_load, least = c, pair_load[p], weight[c] / pair_load[p]
        if chosen < 0:
            chosen = n - 1
            while placed[chosen]:
                chosen -= 1
        else:
            for i in range(start[full], start[full + 1]):
                p = by_link[i]
                c = pair_coflow[p]
                if not placed[c] and c != chosen:
                    weight[c] -= weight[chosen] * pair_load[p] / chosen_load
        placed[chosen] = True
        order[place] = chosen
        for p in range(begin[chosen], begin[chosen + 1]):
            load[pair_link[p]] = max(load[pair_link[p]] - pair_load[p], 0.0)
    return order


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
