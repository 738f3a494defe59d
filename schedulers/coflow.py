"""Coflow scheduling: what a policy may observe, and the rivals of Parrot.

A policy is given a `View` of the coflows that can send now and writes a rate for each of their flows. It has
no clock and keeps no state about the network, so a simulator and a live controller can use the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from schedulers.compiled import Floats, Ints, Routes, compiled
from schedulers.filling import FULL, max_min, progressive_fill

Allocation = Literal["madd", "equal", "max-min"]


@dataclass(slots=True)
class View:
    """The coflows that can send. Flows of coflow c are the rows first[c] to last[c] - 1 of the flow arrays.

    Per flow (F,): `size` and `remaining` bytes, `rate` bytes/s (the policy writes it), `links` (F, H) its
    route. Per coflow (C,): `order` in which they became valid (smaller first), `ident` the caller's number,
    `bottleneck` the effective completion time alone in the network (Γ of Parrot's O3, s), `sent` bytes, `job`
    number, and of the job `job_sent` bytes and `job_completed` coflows. `capacity` (L,) bytes/s per link.
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

    def active_flows(self) -> Ints:
        """Return the rows of all flows that have bytes left."""
        if not len(self):
            return np.empty(0, np.int64)
        rows = np.concatenate([np.arange(a, b) for a, b in zip(self.first, self.last, strict=True)])
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
def _clip_full(residual: Floats, capacity: Floats) -> None:
    for link in range(len(residual)):
        if residual[link] < FULL * capacity[link]:
            residual[link] = 0.0


@compiled
def _take(links: Routes, first: int, last: int, rate: Floats, residual: Floats, capacity: Floats) -> None:
    for f in range(first, last):
        if rate[f] > 0.0:
            for link in links[f]:
                if link < 0:
                    break
                residual[link] -= rate[f]
                if residual[link] < FULL * capacity[link]:
                    residual[link] = 0.0


@compiled
def madd_in_order(
    ranking: Ints,
    first: Ints,
    last: Ints,
    links: Routes,
    remaining: Floats,
    capacity: Floats,
    residual: Floats,
    rate: Floats,
) -> None:
    """Minimum allocation for desired duration (Varys, 5.3): each coflow in turn finishes all its flows at
    once.

    A coflow that needs a full link gets nothing. Writes `rate`, takes from `residual`.
    """
    need = np.zeros(len(capacity))
    for c in ranking:
        gamma = bottleneck_time(links, remaining, first[c], last[c], residual, need)
        scale = 1.0 / gamma if 0.0 < gamma < np.inf else 0.0
        for f in range(first[c], last[c]):
            rate[f] = remaining[f] * scale
        if scale > 0.0:
            _take(links, first[c], last[c], rate, residual, capacity)


@compiled
def _mark(
    links: Routes, a: int, b: int, remaining: Floats, residual: Floats, rate: Floats, count: Ints
) -> None:
    for f in range(a, b):
        rate[f] = 0.0
        if remaining[f] > 0.0 and _least(links, f, residual) > 0.0:
            rate[f] = 1.0
            for link in links[f]:
                if link < 0:
                    break
                count[link] += 1


@compiled
def _divide(links: Routes, a: int, b: int, residual: Floats, rate: Floats, count: Ints) -> None:
    for f in range(a, b):
        if rate[f] > 0.0:
            share = np.inf
            for link in links[f]:
                if link < 0:
                    break
                share = min(share, residual[link] / count[link])
            rate[f] = share


@compiled
def equal_in_order(
    ranking: Ints,
    first: Ints,
    last: Ints,
    links: Routes,
    remaining: Floats,
    capacity: Floats,
    residual: Floats,
    rate: Floats,
) -> None:
    """Each coflow in turn shares what is left equally: a flow gets the least of left / flows over its links.

    Needs no sizes. Writes `rate`, takes from `residual`.
    """
    for c in ranking:
        count = np.zeros(len(capacity), np.int64)
        _mark(links, first[c], last[c], remaining, residual, rate, count)
        _divide(links, first[c], last[c], residual, rate, count)
        _take(links, first[c], last[c], rate, residual, capacity)


@compiled
def share_rest(
    ranking: Ints,
    first: Ints,
    last: Ints,
    links: Routes,
    remaining: Floats,
    capacity: Floats,
    residual: Floats,
    rate: Floats,
) -> None:
    """All flows of the coflows that got nothing yet share what is left equally, as if they were one
    coflow."""
    count = np.zeros(len(capacity), np.int64)
    unserved = np.zeros(len(first), np.bool_)
    for c in ranking:
        total = 0.0
        for f in range(first[c], last[c]):
            total += rate[f]
        unserved[c] = total == 0.0
        if unserved[c]:
            _mark(links, first[c], last[c], remaining, residual, rate, count)
    for c in ranking:
        if unserved[c]:
            _divide(links, first[c], last[c], residual, rate, count)
    for c in ranking:
        if unserved[c]:
            _take(links, first[c], last[c], rate, residual, capacity)


@compiled
def max_min_in_order(
    ranking: Ints,
    first: Ints,
    last: Ints,
    links: Routes,
    remaining: Floats,
    capacity: Floats,
    residual: Floats,
    rate: Floats,
) -> None:
    """Each coflow in turn shares what is left max-min fairly among its flows. Needs no sizes."""
    for c in ranking:
        flows = np.arange(first[c], last[c])
        weight = np.ones(len(flows))
        for i in range(len(flows)):
            rate[flows[i]] = 0.0
            if remaining[flows[i]] <= 0.0:
                weight[i] = 0.0
        progressive_fill(links, flows, weight, residual, rate)
        _clip_full(residual, capacity)


@compiled
def _least(links: Routes, f: int, residual: Floats) -> float:
    least = np.inf
    for link in links[f]:
        if link < 0:
            break
        least = min(least, residual[link])
    return least


@compiled
def backfill_in_order(
    ranking: Ints,
    first: Ints,
    last: Ints,
    links: Routes,
    remaining: Floats,
    capacity: Floats,
    residual: Floats,
    rate: Floats,
) -> None:
    """Give what is left to flows one by one, by coflow: work conservation. Adds to `rate`."""
    for c in ranking:
        for f in range(first[c], last[c]):
            if remaining[f] > 0.0:
                extra = _least(links, f, residual)
                if extra > 0.0:
                    rate[f] += extra
                    for link in links[f]:
                        if link < 0:
                            break
                        residual[link] -= extra
                        if residual[link] < FULL * capacity[link]:
                            residual[link] = 0.0


_ALLOCATE = {"madd": madd_in_order, "equal": equal_in_order, "max-min": max_min_in_order}


class PriorityPolicy:
    """Serves coflows in an order; what one leaves goes to the next.

    Without work conservation only the first coflow gets bandwidth, the paper's "-wo-WC" variants. With it,
    the others follow in order; coflows that MADD had to skip share what is left, and what is still left is
    given to single flows in order.
    """

    name = "priority"
    allocation: Allocation = "madd"

    def __init__(self, *, work_conserving: bool = True) -> None:
        self.work_conserving = work_conserving
        if not work_conserving:
            self.name = f"{self.name}-wo-wc"

    def ranking(self, view: View) -> Ints:
        """Return the indices of `view`'s coflows, first to be served first."""
        raise NotImplementedError

    def backfill_ranking(self, view: View, ranking: Ints) -> Ints:
        """Return the order in which what is left is given away."""
        return ranking

    def allocate(self, view: View) -> None:
        """Write the rates; see the class."""
        ranking = self.ranking(view)
        residual = view.capacity.copy()
        arrays = (view.first, view.last, view.links, view.remaining, view.capacity, residual, view.rate)
        if self.work_conserving:
            _ALLOCATE[self.allocation](ranking, *arrays)
            if self.allocation == "madd":
                share_rest(ranking, *arrays)
            backfill_in_order(self.backfill_ranking(view, ranking), *arrays)
        else:
            _ALLOCATE[self.allocation](ranking[:1], *arrays)
            for c in ranking[1:]:
                view.rate[view.first[c] : view.last[c]] = 0.0

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

    def __init__(self, *, dynamic: bool = True, work_conserving: bool = True) -> None:
        super().__init__(work_conserving=work_conserving)
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
    """ "Aalo" as Parrot's evaluation has it (6): the job with the least bytes sent first."""

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


class FixedOrder(PriorityPolicy):
    """Serves coflows in the order of a given list of their numbers, for examples and tests."""

    name = "fixed-order"

    def __init__(self, idents: list[int], *, work_conserving: bool = True) -> None:
        super().__init__(work_conserving=work_conserving)
        self.position = {ident: i for i, ident in enumerate(idents)}

    def ranking(self, view: View) -> Ints:
        """By place in the list."""
        return np.argsort([self.position[int(i)] for i in view.ident], kind="stable")


class DClas(PriorityPolicy):
    """Aalo as published (SIGCOMM 2015, 4): queues by bytes sent, FIFO within a queue, no sizes needed.

    Queue q holds coflows that have sent less than `first_threshold` * `factor`^q bytes. Queues are served by
    strict priority, as its authors' simulator does; with `weighted` queue q gets the share (queues - q) / Σ
    of each link, and what queues leave goes by priority, as the paper has it.
    """

    name = "d-clas"
    allocation: Allocation = "equal"

    def __init__(
        self,
        *,
        queues: int = 10,
        first_threshold: float = 10 * 2**20,
        factor: float = 10.0,
        weighted: bool = False,
        work_conserving: bool = True,
    ) -> None:
        if queues < 1 or first_threshold <= 0 or factor <= 1:
            raise ValueError(
                "D-CLAS needs at least one queue, a positive first threshold and a factor above 1"
            )
        super().__init__(work_conserving=work_conserving)
        self.thresholds = first_threshold * factor ** np.arange(queues - 1)
        self.weighted = weighted

    def queue(self, view: View) -> Ints:
        """Return the queue of each coflow, 0 first."""
        return np.searchsorted(self.thresholds, view.sent * (1 + 1e-9), side="right")

    def ranking(self, view: View) -> Ints:
        """By queue, then by order."""
        return np.lexsort((view.order, self.queue(view)))

    def allocate(self, view: View) -> None:
        """Write the rates: strict priority of queues, or their weighted shares first."""
        if not self.weighted:
            super().allocate(view)
            return
        queue = self.queue(view)
        present = np.unique(queue)
        weights = {int(q): float(len(self.thresholds) + 1 - q) for q in present}
        ranking = self.ranking(view)
        residual = np.zeros_like(view.capacity)
        arrays = (view.first, view.last, view.links, view.remaining, view.capacity)
        for q in present:
            share = view.capacity * (weights[int(q)] / sum(weights.values()))
            equal_in_order(ranking[queue[ranking] == q], *arrays, share, view.rate)
            residual += share
        backfill_in_order(ranking, *arrays, residual, view.rate)

    def review_after(self, view: View) -> float:
        """When the next coflow crosses its queue's threshold."""
        speed = np.array([view.rate[a:b].sum() for a, b in zip(view.first, view.last, strict=True)])
        queue = self.queue(view)
        sending = (speed > 0.0) & (queue < len(self.thresholds))
        if not sending.any():
            return np.inf
        left = self.thresholds[queue[sending]] - view.sent[sending]
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
