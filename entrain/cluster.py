"""Experiments on a cluster: servers of GPUs, jobs that arrive over time, and strategies that place them.

    [cluster]
    leaves = 4
    spines = 4
    servers_per_leaf = 2
    gpus_per_server = 4
    links_per_pair = 2
    strategy = ["ecmp", "vclos"]

    [arrivals]
    jobs = 100
    every_s = 1.5
    gpus = [2, 4, 8, 16]
    duration_s = [3, 6]

Host h1 is the NIC of GPU 0, h2 of GPU 1 and so on. docs/experiment-files.md describes each key.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from controlplane.routing import Routing
from controlplane.topology import FIRST_GRPC_PORT, Target, Topology, leaf_spine
from entrain.bound import bound_ms
from entrain.placing import ClusterTable, LiveStrategy, Positive, Seconds, read_rows
from entrain.policies.policy import FileRouting
from machine.errors import BadInput
from machine.toml import Strict, one_of
from mininet_topos.servers import Servers
from ocs.settings import OcsTable
from schedulers.placement.cluster import Cluster, Request, empty
from schedulers.placement.queue import ORDERS
from schedulers.placement.strategies import Strategy
from workloads.collectives import DDP
from workloads.jobs import JobSpec, parse_job
from workloads.models import MODELS
from workloads.strategies import strategies

DATA_PARALLEL = "ring"
"""Models whose own collective this is exchange gradients, which other collectives can do as well."""

FIRST_PORT = 7000
LAST_PORT = 16383
"""Jobs listen on ports from the first to the last, in turn; source ports follow (`SOURCE_PORTS`)."""

SERVER_RATE = 4
"""Default rate within a server over that of a NIC. Two NVLinks of a V100 carry 50 GB/s, and its NIC 12.5."""

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
Two = Annotated[int, Field(ge=2)]
Model = Annotated[str, one_of(lambda: [name for name, model in MODELS.items() if model.collective != DDP])]
Exchange = Annotated[
    str, one_of(lambda: ("ring", "hierarchical-ring", "halving-doubling", "parameter-server"))
]
PARTED = ("ring", "parameter-server")
"""The collectives whose shares `parts` divides."""


class LiveClusterTable(ClusterTable):
    """The `[cluster]` table of an experiment."""

    strategy: Annotated[tuple[LiveStrategy, ...], Field(min_length=1, strict=False)]
    queue: Annotated[str, one_of(lambda: ORDERS)] = "fifo"
    backfill: bool = False
    rate_mbps: Rate = 100.0
    server_rate_mbps: Rate | None = None
    queue_packets: Positive = 64
    trace: str | None = None
    model: Model = "vgg16"
    scale: Rate = 1.0
    compute_scale: Rate = 1.0
    barrier: bool = False
    parts: Annotated[int, Field(ge=0)] = 0


class ArrivalsTable(Strict):
    """The `[arrivals]` table: random jobs, drawn from the seed."""

    jobs: Positive
    every_s: Seconds | None = None
    gpu_load: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, strict=False)] | None = None
    gpus: Annotated[tuple[Two, ...], Field(min_length=1, strict=False)]
    duration_s: Annotated[tuple[Rate, Rate], Field(strict=False)]
    models: Annotated[tuple[Model, ...], Field(min_length=1, strict=False)] = ("vgg16",)
    collectives: Annotated[tuple[Exchange, ...], Field(min_length=1, strict=False)] = ("ring",)


@dataclass(frozen=True)
class Arrival:
    """A job that asks for `gpus` GPUs at `arrival_s`, and would run for about `duration_s` if alone."""

    name: str
    gpus: int
    arrival_s: float
    duration_s: float
    model: str
    collective: str
    deadline_s: float | None = None

    @property
    def request(self) -> Request:
        """What it asks for."""
        return Request(self.name, self.gpus, self.collective)


@dataclass(frozen=True)
class ClusterPlan:
    """A checked `[cluster]`, with its jobs either listed (`listed`) or drawn from a seed (`drawn`)."""

    table: LiveClusterTable
    listed: tuple[Arrival, ...] = ()
    drawn: ArrivalsTable | None = None

    def arrivals(self, seed: int) -> tuple[Arrival, ...]:
        """Return the jobs in the order of their arrival. The same seed gives the same jobs."""
        if self.drawn is None:
            return self.listed
        jobs = tuple(_draw(self.drawn, random.Random(f"{seed}/arrivals")))
        if self.drawn.gpu_load is None:
            return jobs
        table = self.table
        gpus = table.leaves * table.servers_per_leaf * table.gpus_per_server
        busy_s = sum(job.gpus * job.duration_s for job in jobs) / gpus
        span_s, last_s = busy_s / (self.drawn.gpu_load / 100.0), jobs[-1].arrival_s
        scale = span_s / last_s if last_s else 0.0
        return tuple(replace(job, arrival_s=job.arrival_s * scale) for job in jobs)

    def cluster(self, strategy: str) -> Cluster:
        """Return the cluster that a strategy runs on: rECMP has more spines."""
        table = self.table
        return strategies()[strategy].cluster(
            Cluster(
                table.leaves,
                table.spines,
                table.servers_per_leaf,
                table.gpus_per_server,
                table.links_per_pair,
                table.ocs,
            )
        )

    def topology(self, strategy: str, name: str, target: Target) -> Topology:
        """Return the network of that cluster, with a host for each GPU.

        Only where the strategy makes circuits do links pass the emulated optical circuit switch.
        """
        cluster = self.cluster(strategy)
        return leaf_spine(
            cluster.leaves,
            cluster.spines,
            cluster.gpus_per_leaf,
            cluster.links_per_pair,
            self.table.rate_mbps,
            self.table.rate_mbps,
            self.table.queue_packets,
            name=name,
            target=target,
            grpc_port=FIRST_GRPC_PORT,
            ocs=OcsTable(driver="emulated") if strategies()[strategy].ocs else None,
        )

    @property
    def routing(self) -> tuple[FileRouting, ...]:
        """How the strategies' jobs are routed; `vclos` is over links of their own."""
        known = strategies()
        chosen = (known[name] for name in self.table.strategy)
        return tuple("vclos" if each.isolated else routed(each) for each in chosen)

    @property
    def servers(self) -> Servers:
        """The servers' hosts, and the rate between two of them."""
        table = self.table
        size, number = table.gpus_per_server, table.leaves * table.servers_per_leaf * table.gpus_per_server
        hosts = tuple(tuple(map(host, range(first, first + size))) for first in range(0, number, size))
        return Servers(hosts, table.server_rate_mbps or SERVER_RATE * table.rate_mbps)

    def spec(self, number: int, arrival: Arrival, addresses: Sequence[str]) -> JobSpec:
        """Return the specification of job `number` with rank i at `addresses[i]`. Raises BadInput."""
        table, ranks = self.table, len(addresses)
        servers, rest = divmod(ranks, table.gpus_per_server)
        return parse_job(
            {
                "name": arrival.name,
                "hosts": list(addresses),
                "rendezvous": "unset",
                "output": "unset",
                "port_base": FIRST_PORT + number % (LAST_PORT - FIRST_PORT + 1),
                "model": arrival.model,
                "collective": arrival.collective,
                "scale": table.scale,
                "compute_scale": table.compute_scale,
                "barrier": table.barrier,
                "parts": table.parts if arrival.collective in PARTED else 0,
                "group": table.gpus_per_server if servers > 1 and not rest else 0,
            },
            f"job {arrival.name}",
        )

    def iterations(self, arrival: Arrival) -> int:
        """Return how many iterations of the job take `duration_s` where NICs alone limit it, at least one.

        It depends on no placement, so a job does the same work under every strategy.
        """
        spec = self.spec(0, arrival, [f"10.0.0.{number}" for number in range(1, arrival.gpus + 1)])
        return max(1, round(arrival.duration_s * 1e3 / bound_ms(spec, [self.table.rate_mbps] * arrival.gpus)))


def routed(strategy: Strategy) -> Routing:
    """Return how a network routes the jobs that a strategy places."""
    return "ecmp" if strategy.routing == "ecmp" else "source"


def host(gpu: int) -> str:
    """Return the name of the host that stands for a GPU and its NIC."""
    return f"h{gpu + 1}"


def cluster_plan(
    path: Path, table: LiveClusterTable, arrivals: ArrivalsTable | None, seeds: Sequence[int]
) -> ClusterPlan:
    """Return the plan of an experiment file, all of whose jobs can start on the idle cluster.

    Raises BadInput that names the file, the key or the line, and the remedy.
    """
    for name, count in Counter(table.strategy).items():
        if count > 1:
            raise BadInput(f"{path}: [cluster], strategy: {name!r} is listed {count} times; list it once")
    for name in table.strategy:
        if strategies()[name].ocs and not table.ocs:
            raise BadInput(f"{path}: [cluster], ocs: is false, and {name} makes circuits; set ocs = true")
    if (table.trace is None) == (arrivals is None):
        raise BadInput(
            f"{path}: [cluster], trace: give either trace (a CSV file of jobs) or [arrivals], not both"
        )
    if table.trace is not None:
        where = path.parent / table.trace
        plan = ClusterPlan(table, listed=_listed(where, table.model))
        _check_jobs(plan, plan.listed, {each.name: f"{where}: job {each.name}" for each in plan.listed})
        return plan
    assert arrivals is not None
    if (arrivals.every_s is None) == (arrivals.gpu_load is None):
        raise BadInput(
            f"{path}: [arrivals], every_s: give either every_s (mean time between arrivals) or gpu_load "
            f"(percent of the GPUs in use), not both"
        )
    if arrivals.duration_s[0] > arrivals.duration_s[1]:
        raise BadInput(f"{path}: [arrivals], duration_s: put the shorter time first, as in [3, 6]")
    plan = ClusterPlan(table, drawn=arrivals)
    jobs = [job for seed in seeds for job in plan.arrivals(seed)]
    _check_jobs(plan, jobs, {job.name: f"{path}: [arrivals], gpus: {job.gpus}" for job in jobs})
    return plan


def _listed(path: Path, model: str) -> tuple[Arrival, ...]:
    jobs = []
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if row.gpus < 2:
            raise BadInput(
                f"{where}: gpus: a job of one GPU uses no network; give it at least 2, or remove it"
            )
        times = (row.arrival_s, row.duration_s)
        jobs.append(Arrival(row.job, row.gpus, *times, row.model or model, row.pattern, row.deadline_s))
    return tuple(sorted(jobs, key=lambda job: job.arrival_s))


def _check_jobs(plan: ClusterPlan, jobs: Iterable[Arrival], where: Mapping[str, str]) -> None:
    """Raise BadInput for a job that a strategy could never start, or whose collective cannot run."""
    for name in plan.table.strategy:
        strategy, idle = strategies()[name], empty(plan.cluster(name))
        for job in {(job.gpus, job.collective): job for job in jobs}.values():
            if refused := strategy.refusal(idle, job.request):
                raise BadInput(f"{where[job.name]}: {name}: {refused}")
    for job in {(job.gpus, job.collective, job.model): job for job in jobs}.values():
        try:
            plan.iterations(job)
        except BadInput as error:
            raise BadInput(f"{where[job.name]}: {error}") from None


def _draw(table: ArrivalsTable, chance: random.Random) -> Iterator[Arrival]:
    """Yield random jobs: Poisson arrivals, everything else uniform. Source: vClos, 8.1 (sizes, models)."""
    now = 0.0
    for number in range(1, table.jobs + 1):
        model = chance.choice(table.models)
        own = MODELS[model].collective
        collective = chance.choice(table.collectives) if own == DATA_PARALLEL else own
        gpus, duration_s = chance.choice(table.gpus), chance.uniform(*table.duration_s)
        yield Arrival(f"{model}-{number}", gpus, now, duration_s, model, collective)
        every_s = 1.0 if table.every_s is None else table.every_s  # under gpu_load, times are scaled
        now += chance.expovariate(1 / every_s) if every_s else 0.0
