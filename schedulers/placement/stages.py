"""The stages in which vClos and OCS-vClos look for a job's GPUs, links and circuits.

A *unit* is what the network part of a placement deals in: an idle server of T GPUs, or a single GPU where
locality is relaxed. Ties go to the lower number everywhere, so that results repeat.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import numpy as np

from schedulers.compiled import Bools, Ints
from schedulers.placement.cluster import DARK, Circuit, Cluster, Link, Placement, Port, Request, State
from schedulers.placement.search import FOUND, UNDECIDED, find
from schedulers.placement.shapes import size_with_shape

Cause = Literal["gpus", "network"]
"""Why a job cannot start: too few GPUs are free, or they are but no virtual Clos joins them."""

LIMIT = 200_000
"""Steps of the search, after which HiGHS decides."""


def vclos(
    state: State, request: Request, *, locality: bool = True, solver: bool = False
) -> Placement | Cause:
    """Place a job so that nobody else uses its links. Source: vClos, 6.1, algorithms 1 and 3.

    Stage 0 is one server, stage 1 one leaf, stage 2 a virtual Clos. With `solver`, HiGHS finds the virtual
    Clos instead of the search.
    """
    near = within_leaf(state, request, locality)
    if near != "network":
        return near
    unit = _unit(state.cluster, locality)
    units = _units(state, unit)
    idle: Ints = units.sum(axis=1)
    free: Ints = state.free_links.sum(axis=2)
    for leaves, width in _vclos_shapes(state.cluster, request.gpus, request.pattern, unit):
        links_per_pair = state.cluster.links_per_pair
        chosen = _leaves(idle, free, links_per_pair, unit, leaves, width, 0 if solver else LIMIT)
        if chosen is not None:
            return _virtual_clos(state, request.job, units, unit, chosen, width)
    return "network"


def vclos_on(state: State, request: Request, gpus: Iterable[int]) -> Placement | None:
    """Return the virtual Clos of a job that runs on these GPUs and no others, or None if there is none."""
    elsewhere = set(range(state.cluster.gpus)) - set(gpus)
    found = vclos(state.without(gpus=elsewhere), request)
    return found if isinstance(found, Placement) else None


def _leaves(
    idle: Ints, free: Ints, links_per_pair: int, unit: int, leaves: int, width: int, limit: int
) -> Ints | None:
    """The leaves of a virtual Clos, ascending, or None if there is none.

    By the search, and by HiGHS where that is not done after `limit` steps.
    """
    able = np.flatnonzero(idle * unit >= width)
    if len(able) < leaves:
        return None
    fullest = able[np.argsort(idle[able], kind="stable")]
    least_free = np.argsort(free.sum(axis=0), kind="stable")
    status, picked = find(free[np.ix_(fullest, least_free)], links_per_pair, leaves, width, limit)
    if status == UNDECIDED:
        from schedulers.placement import exact  # late: scipy takes half a second to load

        return exact.virtual_clos(idle, free, links_per_pair, unit, leaves, width)
    return np.sort(fullest[picked]) if status == FOUND else None


def ocs_vclos(
    state: State, request: Request, *, locality: bool = True, solver: bool = False
) -> Placement | Cause:
    """Place a job so that nobody else uses its links, with circuits made as needed between free ports.

    Stages 0 and 1 are those of vClos. Stage 2 joins two leaves by circuits without a spine, or any leaves by
    one spine; stage 3 is a virtual Clos over several spines. Source: vClos, 7, algorithms 2 and 4. Raises
    ValueError for a cluster without an OCS.
    """
    if not state.cluster.ocs:
        raise ValueError("the cluster has no optical circuit switch")
    near = within_leaf(state, request, locality)
    if near != "network":
        return near
    unit = _unit(state.cluster, locality)
    units = _units(state, unit)
    idle: Ints = units.sum(axis=1)
    uplinks, ports = state.uplinks.sum(axis=1), state.spine_ports.sum(axis=1)
    size = -(-request.gpus // unit) * unit

    half = size // 2
    if size % (2 * unit) == 0:
        able = np.flatnonzero((idle * unit >= half) & (uplinks >= half))
        if len(able) >= 2:
            pair = np.sort(able[np.argsort(idle[able], kind="stable")][:2])
            return _direct(state, request.job, units, unit, pair, half)

    room = np.minimum(idle, uplinks // unit)
    if room.sum() * unit >= size and (able := np.flatnonzero(ports >= size)).size:
        spine = int(able[np.argmin(ports[able])])
        taken = _fill(room, idle, size // unit)
        return _rewired(state, request.job, units, unit, taken * unit, 1, [spine], stage=2)

    for leaves, width in _ocs_shapes(state.cluster, request.gpus, request.pattern, unit):
        if solver:
            from schedulers.placement import exact  # late, as above

            found = exact.rewired_clos(idle, uplinks, ports, unit, leaves, width)
            if found is None:
                continue
            virtual_leaves, per_spine = found
        else:
            room, spine_room = np.minimum(idle * unit, uplinks) // width, ports // leaves
            if room.sum() < leaves or spine_room.sum() < width:
                continue
            virtual_leaves, per_spine = _fill(room, idle, leaves), _fill(spine_room, ports, width)
        virtual_spines = np.repeat(np.arange(len(per_spine)), per_spine).tolist()
        return _rewired(state, request.job, units, unit, virtual_leaves, width, virtual_spines, stage=3)
    return "network"


def unreserved(
    state: State, request: Request, *, locality: bool = True, solver: bool = False
) -> Placement | Cause:
    """Place a job's GPUs only, near each other: in one server, in one leaf, else in the fewest leaves."""
    near = within_leaf(state, request, locality)
    if near != "network":
        return near
    unit = _unit(state.cluster, locality)
    units = _units(state, unit)
    idle: Ints = units.sum(axis=1)
    left = -(-request.gpus // unit)
    taken = np.zeros_like(idle)
    for leaf in np.argsort(-idle, kind="stable"):
        enough = np.flatnonzero((idle >= left) & (taken == 0))
        last = len(enough) > 0
        leaf = enough[np.argmin(idle[enough])] if last else leaf
        taken[leaf] = left if last else idle[leaf]
        left -= int(taken[leaf])
        if not left:
            break
    gpus = _gpus_of(units, taken, unit)[: request.gpus]
    return _placement(state, request.job, 2, gpus)


def apart(
    state: State, request: Request, *, locality: bool = True, solver: bool = False
) -> Placement | Cause:
    """Place a job's GPUs only, on as many servers as there are, so that jobs share the servers' links.

    No server gives more GPUs than it must on an idle cluster. The job's name draws the servers' order, and a
    rank's successor is on the next server. Source: flow-scheduling paper, VI-A.
    """
    free = state.gpus.reshape(-1, state.cluster.gpus_per_server)
    order = drawn_order(request.job, len(free))
    gpus = [
        server * state.cluster.gpus_per_server + own[turn]
        for turn in range(-(-request.gpus // len(free)))
        for server in order
        if turn < len(own := np.flatnonzero(free[server]))
    ]
    if len(gpus) < request.gpus:
        return "gpus"
    return _placement(state, request.job, 2, np.array(gpus[: request.gpus], np.int64))


def drawn_order(job: str, servers: int) -> list[int]:
    """Return all servers in the order in which `apart` looks for GPUs for this job."""
    order: list[int] = np.random.default_rng(zlib.crc32(job.encode())).permutation(servers).tolist()
    return order


def within_leaf(state: State, request: Request, locality: bool) -> Placement | Cause:
    """Look for one server, then for one leaf: stages 0 and 1.

    Of the servers and leaves that have room the one with the least. "network" says that GPUs suffice, but in
    several leaves. Source: vClos, 6.1.
    """
    cluster, wanted = state.cluster, request.gpus
    if wanted <= cluster.gpus_per_server:
        free = state.gpus.sum(axis=2).reshape(-1)
        able = np.flatnonzero(free >= wanted)
        if len(able):
            server = int(able[np.argmin(free[able])])
            first = server * cluster.gpus_per_server
            own = np.flatnonzero(state.gpus.reshape(-1, cluster.gpus_per_server)[server])
            return _placement(state, request.job, 0, first + own[:wanted])
        if locality:
            return "gpus"
    unit = _unit(cluster, locality)
    units = _units(state, unit)
    idle: Ints = units.sum(axis=1)
    needed = -(-wanted // unit)
    able = np.flatnonzero(idle >= needed)
    if len(able):
        taken = np.zeros_like(idle)
        taken[able[np.argmin(idle[able])]] = needed
        return _placement(state, request.job, 1, _gpus_of(units, taken, unit)[:wanted])
    return "network" if idle.sum() >= needed else "gpus"


def _unit(cluster: Cluster, locality: bool) -> int:
    return cluster.gpus_per_server if locality else 1


def _units(state: State, unit: int) -> Bools:
    """Which units are wholly free, shape (leaves, units of a leaf)."""
    return np.asarray(state.gpus.reshape(state.cluster.leaves, -1, unit).all(axis=2))


def _gpus_of(units: Bools, taken: Ints, unit: int) -> Ints:
    """The GPUs of the first `taken` (leaves,) free units of each leaf, ascending."""
    chosen: Ints = np.flatnonzero(units & (units.cumsum(axis=1) <= taken[:, None]))
    gpus: Ints = (chosen[:, None] * unit + np.arange(unit)).reshape(-1)
    return gpus


def _fill(room: Ints, free: Ints, count: int) -> Ints:
    """Spread `count` over `room` (n,), those with the least `free` first; how many each gets."""
    order = np.argsort(free, kind="stable")
    before = np.cumsum(room[order]) - room[order]
    given = np.zeros_like(room)
    given[order] = np.clip(count - before, 0, room[order])
    return given


@lru_cache(maxsize=4096)
def _vclos_shapes(cluster: Cluster, gpus: int, pattern: str, unit: int) -> tuple[tuple[int, int], ...]:
    def fits(leaves: int, width: int) -> bool:
        return leaves <= cluster.leaves and width <= min(cluster.uplinks, cluster.gpus_per_leaf)

    return size_with_shape(gpus, unit, pattern, fits, cluster.gpus)[1]


@lru_cache(maxsize=4096)
def _ocs_shapes(cluster: Cluster, gpus: int, pattern: str, unit: int) -> tuple[tuple[int, int], ...]:
    def fits(leaves: int, width: int) -> bool:
        per_leaf = min(cluster.gpus_per_leaf, cluster.uplinks) // width
        return (
            cluster.leaves * per_leaf >= leaves and cluster.spines * (cluster.spine_ports // leaves) >= width
        )

    return size_with_shape(gpus, unit, pattern, fits, cluster.gpus)[1]


def _placement(state: State, job: str, stage: int, gpus: Ints) -> Placement:
    """A placement without links."""
    leaves = gpus // state.cluster.gpus_per_leaf
    return Placement(job, stage, tuple(gpus.tolist()), tuple(leaves.tolist()))


def _virtual_clos(state: State, job: str, units: Bools, unit: int, leaves: Ints, width: int) -> Placement:
    """The virtual Clos on these leaves, with the spines that have the fewest free links of those that all
    leaves reach."""
    c = state.cluster
    links = state.free_links
    free: Ints = links.sum(axis=2)
    per_spine = _fill(free[leaves].min(axis=0), free.sum(axis=0), width)
    taken = np.zeros(c.leaves, np.int64)
    taken[leaves] = width // unit
    gpus = _gpus_of(units, taken, unit)
    own = links[leaves] & (links[leaves].cumsum(axis=2) <= per_spine[:, None])
    _, spine, index = np.nonzero(own)
    of_rank = np.repeat(leaves, width)
    return Placement(
        job,
        2,
        tuple(gpus.tolist()),
        tuple(of_rank.tolist()),
        (len(leaves), width),
        tuple((spine * c.links_per_pair + index).tolist()),
        tuple(map(Link, of_rank.tolist(), spine.tolist(), index.tolist())),
    )


def _direct(state: State, job: str, units: Bools, unit: int, pair: Ints, half: int) -> Placement:
    """Circuits between two leaves: rank i of the one and rank half + i of the other share one."""
    c = state.cluster
    one, other = pair.tolist()
    near, far = state.uplink_peer[one], state.uplink_peer[other]
    base = -2 - other * c.uplinks
    joined = [
        (port, base - int(near[port]))
        for port in np.flatnonzero(state.uplinks[one] & (near <= base) & (near > base - c.uplinks)).tolist()
        if state.uplinks[other, base - int(near[port])]
    ][:half]
    rest = half - len(joined)
    fresh = zip(
        _spare(state.uplinks[one], near, {p for p, _ in joined}, rest),
        _spare(state.uplinks[other], far, {q for _, q in joined}, rest),
        strict=True,
    )
    joined = sorted([*joined, *fresh])
    taken = np.zeros(c.leaves, np.int64)
    taken[pair] = half // unit
    gpus = _gpus_of(units, taken, unit)
    return Placement(
        job,
        2,
        tuple(gpus.tolist()),
        (one,) * half + (other,) * half,
        (2, half),
        (*(p for p, _ in joined), *(q for _, q in joined)),
        circuits=tuple(Circuit(Port("leaf", one, p), Port("leaf", other, q)) for p, q in joined),
    )


def _rewired(
    state: State,
    job: str,
    units: Bools,
    unit: int,
    virtual_leaves: Ints,
    width: int,
    virtual_spines: list[int],
    stage: int,
) -> Placement:
    """The virtual Clos of `virtual_leaves` (leaves,) of `width` ranks, its spines listed with repetition."""
    leaves = np.flatnonzero(virtual_leaves)
    wanted = {
        (leaf, spine): int(virtual_leaves[leaf]) * copies
        for leaf in leaves.tolist()
        for spine, copies in Counter(virtual_spines).items()
    }
    circuits = _circuits(state, wanted)
    gpus = _gpus_of(units, virtual_leaves * width // unit, unit)
    of_rank = np.repeat(leaves, virtual_leaves[leaves] * width).tolist()
    spine_of = virtual_spines * (len(gpus) // width)
    own = [circuits[pair].pop() for pair in zip(of_rank, spine_of, strict=True)]
    ends = list(zip(of_rank, spine_of, own, strict=True))
    return Placement(
        job,
        stage,
        tuple(gpus.tolist()),
        tuple(of_rank),
        (len(gpus) // width, width),
        tuple(p for p, _ in own),
        tuple(Link(leaf, spine, p) for leaf, spine, (p, _) in ends),
        tuple(Circuit(Port("leaf", leaf, p), Port("spine", spine, q)) for leaf, spine, (p, q) in ends),
    )


def _circuits(
    state: State, wanted: dict[tuple[int, int], int]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """As many free (uplink port, spine port) for each (leaf, spine), highest first, those first that are
    joined already."""
    c = state.cluster
    made: dict[tuple[int, int], list[tuple[int, int]]] = {pair: [] for pair in wanted}
    leaves, spines = sorted({n for n, _ in wanted}), sorted({m for _, m in wanted})
    kept_up: dict[int, set[int]] = {n: set() for n in leaves}
    kept_down: dict[int, set[int]] = {m: set() for m in spines}
    for n in leaves:
        peers = state.uplink_peer[n]
        for p in np.flatnonzero(state.uplinks[n] & (peers >= 0)).tolist():
            m, q = divmod(int(peers[p]), c.spine_ports)
            if len(made.get((n, m), ())) < wanted.get((n, m), 0) and state.spine_ports[m, q]:
                made[n, m].append((p, q))
                kept_up[n].add(p)
                kept_down[m].add(q)
    missing = {pair: count - len(made[pair]) for pair, count in wanted.items()}
    up = {
        n: iter(
            _spare(state.uplinks[n], state.uplink_peer[n], kept_up[n], sum(missing[n, m] for m in spines))
        )
        for n in leaves
    }
    down = {
        m: iter(
            _spare(
                state.spine_ports[m], state.spine_peer[m], kept_down[m], sum(missing[n, m] for n in leaves)
            )
        )
        for m in spines
    }
    for (n, m), count in missing.items():
        made[n, m] += [(next(up[n]), next(down[m])) for _ in range(count)]
        made[n, m].sort(reverse=True)
    return made


def _spare(free: Bools, peers: Ints, kept: Iterable[int], count: int) -> list[int]:
    """The first `count` free ports beside those kept, dark ones before those of circuits."""
    usable = free.copy()
    usable[list(kept)] = False
    ports = np.flatnonzero(usable)
    order = np.argsort(peers[ports] != DARK, kind="stable")
    spare: list[int] = ports[order[:count]].tolist()
    return spare
