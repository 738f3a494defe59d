"""Compiled rate allocation, coflow by coflow, and the primal-dual order of coflows."""

from __future__ import annotations

import numpy as np

from schedulers.coflow.filling import FULL, progressive_fill
from schedulers.coflow.view import Network
from schedulers.compiled import Floats, Ints, Routes, compiled


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
    """Subtract `rate` from the residual capacity of flow `f`'s links; a share below FULL counts as 0."""
    for link in network.links[f]:
        if link < 0:
            break
        network.residual[link] -= rate
        if network.residual[link] < FULL * network.capacity[link]:
            network.residual[link] = 0.0


@compiled
def _most(network: Network, f: int) -> float:
    """Return the rate that flow `f` can still be given."""
    most = np.inf
    for link in network.links[f]:
        if link < 0:
            break
        most = min(most, network.residual[link])
    return most


@compiled
def madd_in_order(ranking: Ints, network: Network) -> None:
    """Apply MADD, minimum allocation for desired duration (Varys, 5.3): all flows of a coflow finish
    together.

    Coflows are served in the order of `ranking`. A coflow that needs a full link gets nothing. Like every
    allocation in this module, this writes `rate` and subtracts it from `residual`.
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
    """Give each flow of `coflows` the minimum of residual / flows over its links, in one pass. Flows that
    cross a full link get nothing."""
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
    """Serve the coflows in order; each divides the residual capacity equally among its flows. Needs no
    sizes."""
    for i in range(len(ranking)):
        _share_equally(ranking[i : i + 1], network)


@compiled
def share_rest(ranking: Ints, network: Network) -> None:
    """Divide the residual capacity equally among the coflows without a rate, as if they were one coflow."""
    unserved = np.array([network.rate[network.first[c] : network.last[c]].sum() == 0.0 for c in ranking])
    _share_equally(ranking[unserved], network)


@compiled
def max_min_in_order(ranking: Ints, network: Network) -> None:
    """Serve the coflows in order; each shares the residual capacity max-min fairly among its flows. Needs no
    sizes."""
    for c in ranking:
        flows = np.arange(network.first[c], network.last[c])
        network.rate[flows] = 0.0
        weight = np.where(network.remaining[flows] > 0.0, 1.0, 0.0)
        progressive_fill(network.links, flows, weight, network.residual, network.rate)
        for f in flows:
            take(network, f, 0.0)


@compiled
def backfill_in_order(ranking: Ints, network: Network) -> None:
    """Give the residual capacity to single flows, coflow by coflow (work conservation). Adds to `rate`."""
    for c in ranking:
        for f in range(network.first[c], network.last[c]):
            if network.remaining[f] > 0.0:
                extra = _most(network, f)
                if extra > 0.0:
                    network.rate[f] += extra
                    take(network, f, extra)


@compiled
def primal_dual_order(first: Ints, last: Ints, links: Routes, remaining: Floats, capacity: Floats) -> Ints:
    """Order coflows by the primal-dual rule for concurrent open shops.

    Places are filled from the last to the first. On the most loaded link, the coflow with the least weight
    per load goes last. The weights of the other coflows on that link are then reduced in proportion to their
    load. This is a 4-approximation of the total completion time (Agarwal et al., SIGCOMM 2018).
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
            # Between equal ratios, the coflow that became active later goes last.
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
