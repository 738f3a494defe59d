"""Networks: directed links with capacities, and the routes of flows over them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints, Routes

GBIT = 1e9 / 8
"""Bytes per second of one Gbit/s."""

Routing = Literal["ecmp", "source"]
Router = Callable[[Ints, Ints, Ints], Routes]


@dataclass(frozen=True)
class Topology:
    """Hosts 0 to `hosts` - 1, links with `capacity` (L,) bytes/s and `link_names` (L,).

    `router(src, dst, key)` gives the links of each flow, shape (flows, hops), padded with -1; `key` replaces
    the 5-tuple where routes are hashed. `self_flows` says whether a host may send to itself over its own
    links.
    """

    name: str
    hosts: int
    capacity: Floats
    link_names: tuple[str, ...]
    router: Router
    self_flows: bool = False

    def routes(self, src: Ints, dst: Ints, key: Ints) -> Routes:
        """Return the routes of flows `src` to `dst` (F,); raise BadInput for hosts that do not exist."""
        for ends in (src, dst):
            outside = (ends < 0) | (ends >= self.hosts)
            if outside.any():
                raise BadInput(
                    f"port {int(ends[outside][0])} is out of range: {self.name} has 0 to {self.hosts - 1}; "
                    "use a larger topology or correct the flow"
                )
        if not self.self_flows and (src == dst).any():
            host = int(src[src == dst][0])
            raise BadInput(f"a flow from host {host} to itself crosses no link of {self.name}; leave it out")
        return self.router(src, dst, key)


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not rate > 0.0 or not np.isfinite(rate):
            raise BadInput(f"{name} is {rate}; give a positive number of bytes/s")


def mix(*values: Ints | int) -> Ints:
    """Return a hash of the values, elementwise (splitmix64): the simulator's stand-in for a switch's hash."""
    with np.errstate(over="ignore"):
        state: NDArray[np.uint64] = np.zeros(1, np.uint64)
        for value in values:
            state = state + np.asarray(value).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    result: Ints = (state >> np.uint64(1)).astype(np.int64)
    return result


def switch(hosts: int, rate: float) -> Topology:
    """Return a non-blocking switch: each host has an egress link (index h) and an ingress link (hosts +
    h)."""
    if hosts < 1:
        raise BadInput(f"a switch needs at least one port, not {hosts}")
    _check_rates(rate=rate)

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        return np.stack([src, dst + hosts], axis=1).astype(np.int32)

    names = tuple(f"h{h}-out" for h in range(hosts)) + tuple(f"h{h}-in" for h in range(hosts))
    return Topology(f"switch-{hosts}", hosts, np.full(2 * hosts, float(rate)), names, route, self_flows=True)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    host_rate: float,
    uplink_rate: float,
    *,
    routing: Routing = "ecmp",
    seed: int = 0,
) -> Topology:
    """Return a two-tier folded Clos with one link between each leaf and spine.

    Source routing maps a leaf's server-facing port i to uplink i mod spines; with as many spines as ports,
    the mapping is one-to-one.
    """
    if min(leaves, spines, hosts_per_leaf) < 1:
        raise BadInput("a leaf-spine network needs at least one leaf, one spine and one host per leaf")
    if routing not in ("ecmp", "source"):
        raise BadInput(f"routing {routing!r} is unknown; use ecmp or source")
    _check_rates(host_rate=host_rate, uplink_rate=uplink_rate)
    hosts = leaves * hosts_per_leaf
    up = 2 * hosts
    down = up + leaves * spines

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        a, b = src // hosts_per_leaf, dst // hosts_per_leaf
        spine = mix(seed, src, dst, key) % spines if routing == "ecmp" else (src % hosts_per_leaf) % spines
        result = np.full((len(src), 4), -1, np.int32)
        result[:, 0] = src
        local = a == b
        result[:, 1] = np.where(local, hosts + dst, up + a * spines + spine)
        result[:, 2] = np.where(local, -1, down + b * spines + spine)
        result[:, 3] = np.where(local, -1, hosts + dst)
        return result

    names = (
        [f"h{h}-out" for h in range(hosts)]
        + [f"h{h}-in" for h in range(hosts)]
        + [f"l{leaf}-s{spine}" for leaf in range(leaves) for spine in range(spines)]
        + [f"s{spine}-l{leaf}" for leaf in range(leaves) for spine in range(spines)]
    )
    capacity = np.concatenate(
        [np.full(2 * hosts, host_rate), np.full(2 * leaves * spines, uplink_rate)]
    ).astype(float)
    return Topology(f"leaf-spine-{leaves}x{spines}x{hosts_per_leaf}", hosts, capacity, tuple(names), route)


def tree(
    fan_out: Sequence[int] = (10, 10, 10), rates: Sequence[float] = (10 * GBIT, 20 * GBIT, 40 * GBIT)
) -> Topology:
    """Return a tree of switches: `fan_out[0]` servers a rack, `fan_out[1]` racks a switch, and so on up to
    one root.

    The defaults are the 1,000 servers of the slot scheduler's simulation (VII): 10, 20 and 40 Gbit/s from the
    servers up. Links are ordered by tier; within a tier, upward links precede downward ones.
    """
    if len(fan_out) != len(rates) or not fan_out or min(fan_out) < 1:
        raise BadInput(f"a tree needs as many rates as tiers, each of at least one child: {fan_out}, {rates}")
    _check_rates(**{f"rate of tier {i}": rate for i, rate in enumerate(rates)})
    hosts = int(np.prod(fan_out))
    children = [hosts // int(np.prod(fan_out[:tier])) for tier in range(len(fan_out))]
    offset = np.concatenate([[0], np.cumsum([2 * n for n in children])])

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        tiers = len(fan_out)
        result = np.full((len(src), 2 * tiers), -1, np.int32)
        filled = np.zeros(len(src), np.int64)
        rows = np.arange(len(src))
        up: list[tuple[Ints, Ints]] = []
        a, b = src.copy(), dst.copy()
        for tier in range(tiers):
            apart = rows[a != b]
            up.append((apart, offset[tier] + children[tier] + b[apart]))
            result[apart, filled[apart]] = offset[tier] + a[apart]
            filled[apart] += 1
            a, b = a // fan_out[tier], b // fan_out[tier]
        for apart, link in reversed(up):
            result[apart, filled[apart]] = link
            filled[apart] += 1
        return result

    names, capacity = [], []
    for tier, (n, rate) in enumerate(zip(children, rates, strict=True)):
        names += [f"t{tier}-{i}-up" for i in range(n)] + [f"t{tier}-{i}-down" for i in range(n)]
        capacity += [rate] * (2 * n)
    return Topology(
        "tree-" + "x".join(map(str, fan_out)), hosts, np.array(capacity, float), tuple(names), route
    )


def graph(
    hosts: Sequence[str],
    links: Sequence[tuple[str, str, float]],
    *,
    seed: int = 0,
    explicit: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> Topology:
    """Return an explicit network. `links` (a, b, bytes/s) carry traffic in both directions; `hosts` are the
    nodes at which flows begin and end.

    Routes are shortest paths; a hash selects among equal ones. `explicit` gives the nodes of the route for a
    pair of hosts.
    """
    directed = [(a, b, rate) for a, b, rate in links] + [(b, a, rate) for a, b, rate in links]
    index = {(a, b): i for i, (a, b, _) in enumerate(directed)}
    if len(index) != len(directed):
        raise BadInput("a link is listed twice in the graph; give each pair of nodes once")
    _check_rates(**{f"rate of {a}-{b}": rate for a, b, rate in directed})
    neighbours: dict[str, list[str]] = {}
    for a, b, _ in directed:
        neighbours.setdefault(a, []).append(b)
    for host in hosts:
        if host not in neighbours:
            raise BadInput(f"host {host!r} has no link; add one or leave it out")
    distances: dict[str, dict[str, int]] = {}

    def distance_to(target: str) -> dict[str, int]:
        if target not in distances:
            found = {target: 0}
            queue = deque([target])
            while queue:
                node = queue.popleft()
                for other in neighbours[node]:
                    if other not in found:
                        found[other] = found[node] + 1
                        queue.append(other)
            distances[target] = found
        return distances[target]

    def path(source: str, target: str, key: int) -> list[int]:
        if explicit and (source, target) in explicit:
            nodes = list(explicit[source, target])
        else:
            distance = distance_to(target)
            if source not in distance:
                raise BadInput(f"there is no path from {source} to {target}; connect them")
            nodes = [source]
            while nodes[-1] != target:
                nearer = [n for n in neighbours[nodes[-1]] if distance[n] == distance[nodes[-1]] - 1]
                nodes.append(nearer[int(mix(seed, key, len(nodes))[0]) % len(nearer)])
        try:
            return [index[pair] for pair in itertools.pairwise(nodes)]
        except KeyError as missing:
            raise BadInput(f"route {nodes} uses {missing}, which is not a link; correct the route") from None

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        hashed = mix(src, dst, key)
        paths = [path(hosts[s], hosts[d], int(k)) for s, d, k in zip(src, dst, hashed, strict=True)]
        result = np.full((len(paths), max(map(len, paths), default=1)), -1, np.int32)
        for row, hops in zip(result, paths, strict=True):
            row[: len(hops)] = hops
        return result

    capacity = np.array([rate for _, _, rate in directed], float)
    return Topology(
        f"graph-{len(hosts)}", len(hosts), capacity, tuple(f"{a}-{b}" for a, b, _ in directed), route
    )
