"""A cluster, its state, and what a job reserves of it. All are values: reserving returns another state.

Switches and ports are numbered from 0. GPU g stands in server g // T, server v at leaf v // (servers per
leaf). Uplink port p of leaf n leads to spine p // K, where it is link p % K of the K links of the pair; at
that spine it is port n * K + p % K. Where there is an optical circuit switch (OCS), that is the wiring at
first, and any two ports that no job holds can be joined by a circuit: an uplink port and a spine port, or
uplink ports of two leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedulers.compiled import Bools, Ints

DARK = -1
"""The peer of a port that no circuit joins to another."""


@dataclass(frozen=True)
class Cluster:
    """A leaf-spine network of servers; each GPU has a NIC of its own. Source: vClos, 4.1.

    Raises ValueError for a number below 1.
    """

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    links_per_pair: int = 1
    ocs: bool = False

    def __post_init__(self) -> None:
        for key in ("leaves", "spines", "servers_per_leaf", "gpus_per_server", "links_per_pair"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: is {getattr(self, key)}; give at least 1")

    @property
    def gpus_per_leaf(self) -> int:
        """GPUs of one leaf."""
        return self.servers_per_leaf * self.gpus_per_server

    @property
    def gpus(self) -> int:
        """GPUs of all leaves."""
        return self.leaves * self.gpus_per_leaf

    @property
    def uplinks(self) -> int:
        """Uplink ports of one leaf."""
        return self.spines * self.links_per_pair

    @property
    def spine_ports(self) -> int:
        """Ports of one spine."""
        return self.leaves * self.links_per_pair


@dataclass(frozen=True)
class Request:
    """What a job asks for: `gpus` GPUs, over which it runs the collective `pattern`."""

    job: str
    gpus: int
    pattern: str = "ring"


class Port(NamedTuple):
    """An uplink port of a leaf, or a port of a spine."""

    kind: Literal["leaf", "spine"]
    switch: int
    port: int


class Circuit(NamedTuple):
    """Two ports that the OCS joins; `a` is a leaf's."""

    a: Port
    b: Port


class Link(NamedTuple):
    """A link of a leaf and a spine: number 0 to K - 1 of the pair, or of circuits the leaf's uplink port."""

    leaf: int
    spine: int
    number: int


@dataclass(frozen=True)
class Placement:
    """What one job holds, rank by rank.

    `gpus` are the GPUs in the order of the ranks, `leaves` their leaves. A job that reserves links has the
    `shape` (l, s): l virtual leaves of s consecutive ranks, and s virtual spines. `ports` has the uplink port
    that each rank sends over; it is empty where a job needs no link or reserves none. `links` are those ports
    as links; direct circuits between two leaves are no links. `stage` is the stage that found the placement.
    """

    job: str
    stage: int
    gpus: tuple[int, ...]
    leaves: tuple[int, ...]
    shape: tuple[int, int] = (1, 0)
    ports: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    circuits: tuple[Circuit, ...] = ()

    @property
    def spines(self) -> tuple[int, ...]:
        """The spines that the job uses, ascending."""
        return tuple(sorted({link.spine for link in self.links}))

    def hops(self, source: int, destination: int) -> tuple[tuple[int, int, str], ...]:
        """Return the (leaf, uplink port, direction) that a flow between two ranks takes.

        Source routing: a rank sends over its own link to a virtual spine; from there the flow goes down by
        the link of that virtual spine and the destination's virtual leaf. Within a leaf it takes none.
        Source: vClos, 5.2.
        """
        up, down = self.leaves[source], self.leaves[destination]
        if up == down or not self.ports:
            return ()
        _, width = self.shape
        arrival = destination // width * width + source % width
        if not self.links:  # a circuit is the way up and the way down at once
            return ((up, self.ports[source], "up"),)
        return ((up, self.ports[source], "up"), (down, self.ports[arrival], "down"))


@dataclass(frozen=True, eq=False)
class State:
    """What is free, and how ports are joined.

    `gpus` (leaves, servers, T), `uplinks` (leaves, ports) and `spine_ports` (spines, ports) are true where
    free. `uplink_peer` has the spine port m * (ports of a spine) + q that an uplink port is joined to, or
    -2 - (n * uplinks + p) for uplink port p of leaf n; `spine_peer` has the uplink port n * uplinks + p. Both
    are `DARK` where there is no circuit. The arrays cannot be written.
    """

    cluster: Cluster
    gpus: Bools
    uplinks: Bools
    spine_ports: Bools
    uplink_peer: Ints
    spine_peer: Ints

    def __post_init__(self) -> None:
        for array in (self.gpus, self.uplinks, self.spine_ports, self.uplink_peer, self.spine_peer):
            array.flags.writeable = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return self.cluster == other.cluster and all(
            np.array_equal(mine, yours) for mine, yours in zip(self._arrays(), other._arrays(), strict=True)
        )

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.gpus, self.uplinks, self.spine_ports, self.uplink_peer, self.spine_peer

    @property
    def idle_servers(self) -> Ints:
        """Idle servers of each leaf, shape (leaves,)."""
        idle: Ints = self.gpus.all(axis=2).sum(axis=1)
        return idle

    @property
    def free_links(self) -> Bools:
        """Which links are free, both ends, and joined as at first, shape (leaves, spines, K)."""
        c = self.cluster
        shape = c.leaves, c.spines, c.links_per_pair
        far = self.spine_ports.reshape(c.spines, c.leaves, c.links_per_pair).transpose(1, 0, 2)
        joined = self.uplink_peer == _wiring(c)[0] if c.ocs else np.True_
        return (self.uplinks & joined).reshape(shape) & far

    def without(self, *, gpus: Iterable[int] = (), ports: Iterable[Port] = ()) -> State:
        """Return the state in which these GPUs and ports have failed: no job gets them."""
        arrays = self.gpus.copy(), self.uplinks.copy(), self.spine_ports.copy()
        arrays[0].reshape(-1)[list(gpus)] = False
        for kind, switch, port in ports:
            arrays[1 if kind == "leaf" else 2][switch, port] = False
        return replace(self, gpus=arrays[0], uplinks=arrays[1], spine_ports=arrays[2])


@lru_cache(maxsize=16)
def _wiring(cluster: Cluster) -> tuple[Ints, Ints]:
    """The peers of all uplink ports and of all spine ports at first."""
    c = cluster
    leaf, spine, link = np.ogrid[: c.leaves, : c.spines, : c.links_per_pair]
    down: Ints = spine * c.spine_ports + leaf * c.links_per_pair + link
    up: Ints = leaf * c.uplinks + spine * c.links_per_pair + link
    return down.reshape(c.leaves, c.uplinks), up.transpose(1, 0, 2).reshape(c.spines, c.spine_ports).copy()


def empty(cluster: Cluster) -> State:
    """Return the state in which everything is free and wired as at first."""
    c = cluster
    return State(
        c,
        np.ones((c.leaves, c.servers_per_leaf, c.gpus_per_server), np.bool_),
        np.ones((c.leaves, c.uplinks), np.bool_),
        np.ones((c.spines, c.spine_ports), np.bool_),
        *_wiring(c),
    )


def reserve(state: State, placement: Placement) -> State:
    """Return the state in which the job holds its placement, and its circuits are made.

    Raises ValueError where something of it is not free.
    """
    uplink_peer, spine_peer = state.uplink_peer, state.spine_peer
    if placement.circuits:
        uplink_peer, spine_peer = _joined(state, placement.circuits)
    return _with(state, placement, uplink_peer, spine_peer, taken=True)


def release(state: State, placement: Placement) -> State:
    """Return the state in which the placement is free again. Its circuits stay until others need the ports.

    Raises ValueError where something of it is free already.
    """
    return _with(state, placement, state.uplink_peer, state.spine_peer, taken=False)


def wired(state: State, circuits: Iterable[Circuit]) -> State:
    """Return the state in which exactly these circuits exist. Raises ValueError without an OCS."""
    dark = np.full_like(state.uplink_peer, DARK), np.full_like(state.spine_peer, DARK)
    uplink_peer, spine_peer = _joined(replace(state, uplink_peer=dark[0], spine_peer=dark[1]), circuits)
    return replace(state, uplink_peer=uplink_peer, spine_peer=spine_peer)


def changes(state: State, placement: Placement) -> int:
    """Return how many of the placement's circuits do not exist yet."""
    peers, c = state.uplink_peer, state.cluster
    return sum(int(peers[each.a.switch, each.a.port]) != _code(c, each.b) for each in placement.circuits)


def _with(state: State, placement: Placement, uplink_peer: Ints, spine_peer: Ints, *, taken: bool) -> State:
    uplinks, spine_ports = state.uplinks, state.spine_ports
    gpus = _marked(state.gpus, np.array(placement.gpus, np.int64), placement.job, "GPU", taken)
    if placement.ports:
        ports = np.array(placement.leaves, np.int64) * state.cluster.uplinks + np.array(placement.ports)
        uplinks = _marked(uplinks, ports, placement.job, "uplink port", taken)
        peers = uplink_peer.reshape(-1)[ports]
        spine_ports = _marked(spine_ports, peers[peers >= 0], placement.job, "spine port", taken)
    return State(state.cluster, gpus, uplinks, spine_ports, uplink_peer, spine_peer)


def _marked(free: Bools, which: Ints, job: str, what: str, taken: bool) -> Bools:
    flat = free.reshape(-1)
    wrong = which[flat[which] != taken]
    if len(wrong) or len(np.unique(which)) != len(which):
        problem = f"{what} {wrong[0]} is {'taken' if taken else 'free'}" if len(wrong) else f"a {what} twice"
        raise ValueError(f"job {job}: {problem}")
    marked = flat.copy()
    marked[which] = not taken
    return marked.reshape(free.shape)


def _code(cluster: Cluster, port: Port) -> int:
    """How `uplink_peer` names this port."""
    if port.kind == "spine":
        return port.switch * cluster.spine_ports + port.port
    return -2 - (port.switch * cluster.uplinks + port.port)


def _joined(state: State, circuits: Iterable[Circuit]) -> tuple[Ints, Ints]:
    """Both peers after the circuits are made: what the ports were joined to before is dark."""
    c = state.cluster
    if not c.ocs:
        raise ValueError("the cluster has no optical circuit switch")
    up, down = state.uplink_peer.reshape(-1).copy(), state.spine_peer.reshape(-1).copy()

    def part(code: int) -> None:
        if code <= -2:
            up[-2 - code] = DARK
        elif code >= 0:
            down[code] = DARK

    for a, b in circuits:
        own, code = a.switch * c.uplinks + a.port, _code(c, b)
        if int(up[own]) == code:
            continue
        part(int(up[own]))
        if code >= 0:
            if down[code] != DARK:
                up[down[code]] = DARK
            down[code] = own
        else:
            part(int(up[-2 - code]))
            up[-2 - code] = -2 - own
        up[own] = code
    return up.reshape(c.leaves, c.uplinks), down.reshape(c.spines, c.spine_ports)
