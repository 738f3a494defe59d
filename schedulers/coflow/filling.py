"""Progressive filling and link loads: the arithmetic that all policies share.

Flows are rows of `links` (flows, hops), links are indices into the capacities (links,). Rates and capacities
share one unit, which can be any. A link counts as full when less than a billionth of its capacity is left.
"""

from __future__ import annotations

import heapq

import numpy as np

from schedulers.compiled import Floats, Ints, Routes, compiled

FULL = 1e-9


@compiled
def link_loads(links: Routes, flows: Ints, rate: Floats, load: Floats) -> None:
    """Add the rates (aligned with `links`' rows) of `flows` to `load` (links,)."""
    for f in flows:
        for link in links[f]:
            if link < 0:
                break
            load[link] += rate[f]


@compiled
def common_factor(capacity: Floats, load: Floats) -> float:
    """Return the largest factor by which `load` can be multiplied within `capacity`; infinity without
    load."""
    factor = np.inf
    for link in range(len(capacity)):
        if load[link] > 0.0:
            factor = min(factor, capacity[link] / load[link])
    return factor


@compiled
def progressive_fill(links: Routes, flows: Ints, weight: Floats, residual: Floats, rate: Floats) -> None:
    """Raise the rates of `flows` together, in proportion to `weight`, until each flow crosses a full link.

    With equal weights this is max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2). Adds to `rate`
    and subtracts from `residual`; flows of weight 0 get nothing. The cost is O(F H + L log L): freezing flows
    on other links can only delay when a link fills up, so a link is re-examined only when it is the next to
    fill.
    """
    n_links = len(residual)
    count = np.zeros(n_links + 1, np.int64)
    pending = np.zeros(n_links)
    for i in range(len(flows)):
        if weight[i] > 0.0:
            for link in links[flows[i]]:
                if link < 0:
                    break
                count[link + 1] += 1
                pending[link] += weight[i]
    start = np.cumsum(count)
    members = np.empty(start[n_links], np.int64)
    position = start[:-1].copy()
    for i in range(len(flows)):
        if weight[i] > 0.0:
            for link in links[flows[i]]:
                if link < 0:
                    break
                members[position[link]] = i
                position[link] += 1

    # left[l]: capacity of link l for the flows that still grow, counted from level 0.
    left = residual.copy()
    alive = np.diff(start)
    frozen = np.zeros(len(flows), np.bool_)
    heap = [(0.0, 0) for _ in range(0)]
    for link in range(n_links):
        if alive[link] > 0:
            heap.append((max(left[link], 0.0) / pending[link], link))
    heapq.heapify(heap)
    while len(heap) > 0:
        level, full = heapq.heappop(heap)
        if alive[full] == 0:
            continue
        now = max(left[full], 0.0) / pending[full]
        if now > level:
            heapq.heappush(heap, (now, full))
            continue
        for p in range(start[full], start[full + 1]):
            i = members[p]
            if frozen[i]:
                continue
            frozen[i] = True
            grown = weight[i] * level
            rate[flows[i]] += grown
            for link in links[flows[i]]:
                if link < 0:
                    break
                residual[link] = max(residual[link] - grown, 0.0)
                left[link] -= grown
                pending[link] -= weight[i]
                alive[link] -= 1


@compiled
def max_min(links: Routes, flows: Ints, capacity: Floats, rate: Floats) -> None:
    """Set the max-min fair rates of `flows` in an otherwise idle network of `capacity` (links,)."""
    for f in flows:
        rate[f] = 0.0
    progressive_fill(links, flows, np.ones(len(flows)), capacity.copy(), rate)


@compiled
def equal_share(links: Routes, flows: Ints, capacity: Floats, rate: Floats) -> None:
    """Give each flow an equal share of its most contended link. This is never more than max-min fairness
    gives, and cheaper to compute."""
    count = np.zeros(len(capacity), np.int64)
    for f in flows:
        for link in links[f]:
            if link < 0:
                break
            count[link] += 1
    for f in flows:
        share = np.inf
        for link in links[f]:
            if link < 0:
                break
            share = min(share, capacity[link] / count[link])
        rate[f] = share


@compiled
def squeeze(flows: Ints, links: Routes, capacity: Floats, rate: Floats) -> None:
    """Scale down the flows on overloaded links, each by its most overloaded link."""
    load = np.zeros(len(capacity))
    link_loads(links, flows, rate, load)
    for f in flows:
        worst = 1.0
        for link in links[f]:
            if link < 0:
                break
            if load[link] > capacity[link]:
                worst = min(worst, capacity[link] / load[link])
        rate[f] *= worst
