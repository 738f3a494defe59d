"""Jobs that share a GPU cluster: they queue, get GPUs, and send over a leaf-spine network until they end.

Queue and strategies are those of a live cluster (`schedulers/placement/`). What a job runs is coarse: its
iterations, thousands of them, become a few *rounds*, each of which computes and then runs the steps of the
collective, as long as they take in all the iterations that a round stands for. So flows of jobs meet as
often and as long as those of the iterations, and a run has few enough events.

A job that shares no link with anybody takes as long as its steps alone; its flows are not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from machine.errors import BadInput
from schedulers.coflow.rivals import JobPriorities
from schedulers.compiled import Floats, Ints, Routes, compiled
from schedulers.placement.cluster import Cluster, Placement, Request, empty
from schedulers.placement.queue import Job as QueuedJob
from schedulers.placement.queue import Outcome as Started
from schedulers.placement.queue import Queue
from schedulers.placement.strategies import Strategy
from simulation.jobs import Coflow, Compute, Job, chain
from simulation.scheduled import ScheduledTransport
from simulation.sharing import SharedTransport, Sharing
from simulation.topology import GBIT, Topology, mix
from workloads.collectives import Options, program_of

PHASES = 8
"""The most steps between leaves that a round runs. A collective with more takes turns: others each round."""


@dataclass(frozen=True)
class Tenant:
    """A job of `gpus` GPUs that runs the collective `pattern`.

    On whole servers and without others' flows it takes `duration_s`, and `share` of that is communication
    which computation does not hide.
    """

    ident: str
    gpus: int
    arrival_s: float
    duration_s: float
    share: float = 0.0
    pattern: str = "ring"

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise BadInput(f"job {self.ident}: {self.share} of its time is communication; give 0 to 1")

    @property
    def intensity(self) -> float:
        """GPU seconds of computation for each second of communication. Source: Crux, definition 2."""
        return self.gpus * (1.0 - self.share) / self.share if self.share else math.inf


@dataclass(frozen=True, eq=False)
class Phase:
    """Flows of a collective that run at the same time, from rank `src` to rank `dst` (F,). Each has `part` of
    the bytes of a rank's buffer, over all steps in which the same flows run."""

    src: Ints
    dst: Ints
    part: float


@lru_cache(maxsize=512)
def phases(pattern: str, ranks: int, group: int = 0) -> tuple[Phase, ...]:
    """Return the collective's steps; those with the same flows count as one. `group` is that of hierarchical
    rings."""
    if ranks < 2:
        return ()
    program = program_of(pattern, ranks, Options(group=group))
    parts: dict[tuple[tuple[int, int], ...], float] = {}
    for step in program.steps:
        flows = tuple((t.src, t.dst) for t in step)
        parts[flows] = parts.get(flows, 0.0) + step[0].units / program.units
    made = []
    for flows, part in parts.items():
        src, dst = np.array(flows, np.int64).T
        made.append(Phase(src, dst, part))
    return tuple(made)


class ClusterNetwork:
    """The links of a cluster: of each GPU's NIC out and in, and of each uplink up and down.

    NICs and uplinks have `rate` bytes/s; GPUs of a server reach each other at `server_rate`.
    """

    def __init__(
        self, cluster: Cluster, *, rate: float = 100 * GBIT, server_rate: float = 1000 * GBIT
    ) -> None:
        self.cluster = cluster
        self.rate, self.server_rate = rate, server_rate
        c = cluster
        self.up = 2 * c.gpus
        self.down = self.up + c.leaves * c.uplinks
        names = [f"g{g}-out" for g in range(c.gpus)] + [f"g{g}-in" for g in range(c.gpus)]
        ports = [f"l{n}-p{p}" for n in range(c.leaves) for p in range(c.uplinks)]
        names += [f"{port}-up" for port in ports] + [f"{port}-down" for port in ports]
        self.topology = Topology(
            f"cluster-{c.gpus}",
            c.gpus,
            np.full(len(names), rate),
            tuple(names),
            lambda src, dst, key: self.over(src, dst, src % c.gpus_per_leaf % c.uplinks),
        )

    def leaf(self, gpu: Ints) -> Ints:
        """Return the leaf of each GPU."""
        return gpu // self.cluster.gpus_per_leaf

    def over(self, src: Ints, dst: Ints, port: Ints) -> Routes:
        """Return the links of flows between leaves that go up by `port`, and down by the same one."""
        c = self.cluster
        up = self.up + self.leaf(src) * c.uplinks + port
        down = self.down + self.leaf(dst) * c.uplinks + port
        return np.stack([up, down], axis=1).astype(np.int32)

    def hashed(self, src: Ints, dst: Ints, *key: int) -> Ints:
        """Return the uplink port of each flow by ECMP. A spine with several links to a leaf takes the one of
        the same number, which is as random."""
        ports: Ints = mix(*key, src, dst) % self.cluster.uplinks
        return ports

    def seconds(self, src: Ints, dst: Ints, part: float, most: int = 1) -> float:
        """Return how long the flows of a phase take, in seconds per byte of the buffer, where the busiest
        uplink has `most` of them."""
        c = self.cluster
        apart = src // c.gpus_per_server != dst // c.gpus_per_server
        if not apart.any():
            return part / self.server_rate
        busiest = max(most, *(int(np.bincount(ends[apart]).max()) for ends in (src, dst)))
        return part * busiest / self.rate


@compiled
def _least(src: Ints, dst: Ints, tie: Ints, leaf_of: Ints, uplinks: int, up: int, load: Floats) -> Ints:
    """The least loaded uplink of the source's leaf for each flow, one flow after another, ties by `tie`."""
    chosen = np.zeros(len(src), np.int64)
    for i in range(len(src)):
        first = up + leaf_of[src[i]] * uplinks
        least = np.inf
        ties = 0
        for p in range(uplinks):
            if load[first + p] < least:
                least = load[first + p]
                ties = 0
            ties += load[first + p] == least
        wanted = tie[i] % ties
        for p in range(uplinks):
            if load[first + p] == least:
                if wanted == 0:
                    chosen[i] = p
                    break
                wanted -= 1
        load[first + chosen[i]] += 1.0
    return chosen


class BalancedTransport(SharedTransport):
    """Each flow goes over an uplink that has the fewest flows when it starts. Source: vClos, 9.3."""

    def __init__(
        self, network: ClusterNetwork, *, sharing: Sharing = "max-min", check: bool | None = None
    ) -> None:
        super().__init__(network.topology, sharing=sharing, check=check)
        self._network = network
        self._leaf_of = network.leaf(np.arange(network.cluster.gpus))

    def _routes(self, handle: int, coflow: Coflow) -> Routes:
        tie = mix(handle, np.arange(len(coflow.src)))
        uplinks, up = self._network.cluster.uplinks, self._network.up
        load = self._links.flows.copy()
        port = _least(coflow.src, coflow.dst, tie, self._leaf_of, uplinks, up, load)
        routes = self._network.over(coflow.src, coflow.dst, port)
        if coflow.routes is not None:  # of which the ends are NICs
            routes = np.column_stack([coflow.routes[:, :1], routes, coflow.routes[:, -1:]])
        return routes


class Tenancy:
    """Tell the engine which job starts when, and what it runs where it was placed (`Admission`)."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        strategy: Strategy,
        network: ClusterNetwork,
        *,
        order: str = "fifo",
        backfill: bool = False,
        rounds: int = 12,
        seed: int = 0,
    ) -> None:
        """Raises BadInput for a job that could never start, and a strategy that the cluster cannot run."""
        self.tenants = tenants
        self.network = network
        self.strategy = strategy
        self.rounds = rounds
        self.seed = seed
        self.started_as: dict[int, Started] = {}
        self.shared = 0
        """Jobs whose flows were simulated."""
        idle = empty(network.cluster)
        for request in {(t.gpus, t.pattern): self._request(t) for t in tenants}.values():
            if not isinstance(strategy.place(idle, request), Placement):
                raise BadInput(
                    f"job {request.job}: {strategy.name} has no place for {request.gpus} GPUs and "
                    f"{request.pattern} in a cluster of {network.cluster.gpus} GPUs; take a larger cluster"
                )
        self.queue = Queue(idle, strategy, order, backfill)
        self._changed = False
        c = network.cluster
        self._planned = np.zeros((2, c.leaves, c.uplinks))  # up and down, for least-loaded routing
        self._plans: dict[int, tuple[Ints, Ints, Floats]] = {}

    def jobs(self) -> list[Job]:
        """Return the jobs for the engine. What they run is known when they start."""
        return [chain(t.ident, t.arrival_s, [Compute(t.duration_s)]) for t in self.tenants]

    def arrived(self, job: int) -> None:
        """See Admission."""
        t = self.tenants[job]
        self.queue.submit(job, QueuedJob(self._request(t), t.arrival_s, t.duration_s))
        self._changed = True

    def ended(self, job: int) -> None:
        """See Admission."""
        self.queue.end(job)
        if job in self._plans:
            self._plan(self._plans.pop(job), -1.0)
        self._changed = True

    def started(self, now: float) -> Iterator[tuple[int, Job]]:
        """See Admission."""
        if not self._changed:
            return
        self._changed = False
        for index, outcome in self.queue.start(now):
            self.started_as[index] = outcome
            yield index, self._job(index, outcome.placement)

    def _request(self, tenant: Tenant) -> Request:
        return Request(tenant.ident, tenant.gpus, tenant.pattern)

    def _job(self, index: int, placement: Placement) -> Job:
        tenant, network = self.tenants[index], self.network
        steps = phases(tenant.pattern, len(placement.gpus), self._group(tenant, placement))
        gpus, packed = np.array(placement.gpus), np.arange(len(placement.gpus))
        if not steps or not tenant.share:
            return chain(tenant.ident, tenant.arrival_s, [Compute(tenant.duration_s)])
        reference = sum(network.seconds(packed[s.src], packed[s.dst], s.part) for s in steps)
        buffer = tenant.share * tenant.duration_s / reference  # bytes of all iterations
        spread = self.strategy.routing != "single-switch" and len(set(placement.leaves)) > 1
        crossing: list[Phase] = []
        fixed = (1.0 - tenant.share) * tenant.duration_s
        for step in steps:
            src, dst = gpus[step.src], gpus[step.dst]
            if spread and not self.strategy.isolated and (network.leaf(src) != network.leaf(dst)).any():
                crossing.append(Phase(src, dst, step.part))
            else:
                most = _busiest(placement, step) if spread and self.strategy.isolated else 1
                fixed += buffer * network.seconds(src, dst, step.part, most)
        if not crossing:
            return chain(tenant.ident, tenant.arrival_s, [Compute(fixed)])
        self.shared += 1
        ports = self._ports(index, placement, crossing)
        sequence = _turns(len(crossing), self.rounds)
        scale = buffer * sum(p.part for p in crossing) / sum(crossing[i].part for i in sequence)
        made = {i: self._coflow(index, crossing[i], ports, scale) for i in sorted(set(sequence))}
        works: list[Coflow | Compute] = []
        for i, which in enumerate(sequence):
            if i % (len(sequence) // self.rounds) == 0:
                works.append(Compute(fixed / self.rounds))
            works.append(made[which])
        return chain(tenant.ident, tenant.arrival_s, works)

    def _group(self, tenant: Tenant, placement: Placement) -> int:
        """Groups of a hierarchical ring are servers where the job has whole ones."""
        per_server = self.network.cluster.gpus_per_server
        whole = tenant.pattern == "hierarchical-ring" and len(placement.gpus) % per_server == 0
        return per_server if whole else 0

    def _coflow(self, index: int, phase: Phase, ports: Ints | None, scale: float) -> Coflow:
        """The flows of a phase that leave their leaf, with what `scale` bytes of the buffer make."""
        network = self.network
        across = network.leaf(phase.src) != network.leaf(phase.dst)
        src, dst = phase.src[across], phase.dst[across]
        several = max(np.bincount(src).max(), np.bincount(dst).max()) > 1  # else no NIC is a bottleneck
        routes: Routes | None = None
        nics = np.stack([src, network.cluster.gpus + dst], axis=1).astype(np.int32)
        if self.strategy.routing == "balanced-ecmp":
            routes = nics if several else None
        else:
            if self.strategy.routing == "ecmp":
                port = network.hashed(src, dst, self.seed, index)
            elif ports is not None:
                port = ports[src]
            else:
                port = src % network.cluster.gpus_per_leaf % network.cluster.uplinks
            routes = network.over(src, dst, port)
            if several:
                routes = np.column_stack([nics[:, :1], routes, nics[:, 1:]])
        return Coflow(src, dst, np.full(len(src), phase.part * scale), routes=routes)

    def _ports(self, index: int, placement: Placement, crossing: Sequence[Phase]) -> Ints | None:
        """With least-loaded routing the uplink port of each GPU, shape (GPUs,): where its flows meet the
        fewest planned ones, up from its leaf and down to those that it sends to."""
        if self.strategy.routing != "least-loaded":
            return None
        network, c = self.network, self.network.cluster
        whole = sum(phase.part for phase in crossing)
        to = np.zeros((c.gpus, c.leaves))  # of the time that a GPU sends, to which leaf
        for phase in crossing:
            src, leaf = phase.src, network.leaf(phase.dst)
            across = network.leaf(src) != leaf
            np.add.at(to, (src[across], leaf[across]), phase.part / whole)
        ports = np.zeros(c.gpus, np.int64)
        up, down = self._planned
        for gpu in placement.gpus:
            own, goals = gpu // c.gpus_per_leaf, to[gpu] > 0
            if not goals.any():
                continue
            busy = np.maximum(up[own], down[goals].max(axis=0))
            port = int(np.argmin(busy.round(9)))  # what ended jobs leave of rounding decides nothing
            ports[gpu] = port
            up[own, port] += to[gpu].sum()
            down[:, port] += to[gpu]
        senders = np.flatnonzero(to.any(axis=1))
        self._plans[index] = senders, ports[senders], to[senders]
        return ports

    def _plan(self, plan: tuple[Ints, Ints, Floats], sign: float) -> None:
        senders, ports, to = plan
        up, down = self._planned
        np.add.at(up, (self.network.leaf(senders), ports), sign * to.sum(axis=1))
        np.add.at(down.T, ports, sign * to)


def _turns(count: int, rounds: int) -> list[int]:
    """Which of `count` phases run, one after another, in `rounds` equal rounds: all of them in each, or
    `PHASES` that lie evenly among them, others in each round."""
    if count <= PHASES:
        return list(range(count)) * rounds
    total = PHASES * rounds
    return [(k * rounds + r) * count // total for r in range(rounds) for k in range(PHASES)]


def _busiest(placement: Placement, phase: Phase) -> int:
    """The most flows of a phase on one of the placement's links."""
    load: dict[tuple[int, int, str], int] = {}
    for src, dst in zip(phase.src.tolist(), phase.dst.tolist(), strict=True):
        for hop in placement.hops(src, dst):
            load[hop] = load.get(hop, 0) + 1
    return max(load.values(), default=1)


def transport(
    strategy: Strategy, network: ClusterNetwork, sharing: Sharing, tenants: Sequence[Tenant]
) -> SharedTransport | ScheduledTransport:
    """Return what moves the flows of a strategy's `tenants`. Priorities leave nothing to `sharing`."""
    if strategy.priorities:
        order = np.argsort([-tenant.intensity for tenant in tenants], kind="stable")
        return ScheduledTransport(network.topology, JobPriorities(np.argsort(order)))
    if strategy.routing == "balanced-ecmp":
        return BalancedTransport(network, sharing=sharing)
    return SharedTransport(network.topology, sharing=sharing)


def offered_load(tenants: Sequence[Tenant], gpus: int) -> float:
    """Return the part of the cluster's GPUs that would be in use if no job waited or was slowed down."""
    span = max(t.arrival_s for t in tenants) or math.inf
    return sum(t.gpus * t.duration_s for t in tenants) / (gpus * span)
