"""Experiment files: a network, its jobs, and the routings, policies and seeds to run them with.

    [experiment]
    name = "source-routing"
    routing = ["ecmp", "source"]
    seed = 1

    [topology]
    kind = "leaf-spine"
    leaves = 4
    spines = 4
    hosts_per_leaf = 4

    [[job]]
    name = "vgg"
    model = "vgg16"
    scale = 100
    hosts = ["h1", "h5", "h9", "h13"]
    iterations = 10

With `[cluster]` instead of `[topology]` and `[[job]]`, jobs arrive over time and are placed
(`entrain.cluster`). The whole file is checked before anything is created. docs/experiment-files.md describes
each key.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, create_model

from controlplane.routing import Routing, check_source_routing
from controlplane.topology import TABLES, Target, Topology, load_topology, parse_topology
from entrain.bound import bound_ms
from entrain.cluster import ArrivalsTable, ClusterPlan, LiveClusterTable, cluster_plan, routed
from entrain.policies import policies
from entrain.policies.policy import ExperimentSpec, FileRouting
from entrain.reserved import reserved
from machine.errors import BadInput
from machine.patience import patience
from machine.toml import NAME, Strict, check, matching, one_of, read_toml
from mininet_topos.links import Shaping
from workloads.collectives import DDP
from workloads.jobs import UNSENT_BYTES, JobSpec, parse_job, start_offset
from workloads.strategies import strategies

Kind = Literal["jobs", "slot-rates"]
"""Kind of experiment: jobs in a network, or slot rates on one host (`entrain.trials.slot_rates`)."""

VCLOS = "vclos"
"""The routing that is source routing over links of the job's own, and a strategy of clusters."""

PolicyName = Annotated[str, one_of(policies)]
"""Name of a registered policy, which decides when and how fast flows send."""

Control = Annotated[str, matching(r"[a-z][a-z0-9_]{0,14}", "must be a congestion control, such as cubic")]
"""Name of a TCP congestion control."""

Name = Annotated[str, NAME]
Positive = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
Load = Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False, strict=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


FIRST_PORT = 7000
"""Job i listens on this port + i, so that jobs can share hosts."""


class ExperimentTable(Strict):
    """The `[experiment]` table."""

    name: Name
    kind: Literal["jobs"] = "jobs"
    routing: Annotated[tuple[FileRouting, ...], Field(min_length=1, strict=False)] = ("ecmp",)
    policy: Annotated[tuple[PolicyName, ...], Field(min_length=1, strict=False)] = ("none",)
    congestion_control: Annotated[tuple[Control, ...], Field(min_length=1, strict=False)] | None = None
    seed: Annotated[tuple[Seed, ...], Field(min_length=1, strict=False)] = (1,)
    load: Annotated[tuple[Load, ...], Field(strict=False)] = ()
    start_spread_ms: Milliseconds = 0.0
    alone_iterations: Annotated[int, Field(ge=0)] = 0
    sample_ms: Factor | None = None
    target: Target | None = None
    topology: str | None = None
    timeout_s: Factor = 120.0


class _KindTable(BaseModel):
    kind: Kind = "jobs"


class _KindFile(BaseModel):
    experiment: _KindTable = _KindTable()


class NetworkTable(Strict):
    """The `[network]` table: how the topology is emulated."""

    shaping: Shaping = "htb"
    offloads: bool | None = None
    congestion_control: Control | None = None
    rto_min_ms: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=False)] | None = None
    slow_start_after_idle: bool | None = None
    loss: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=False)] = 0.0
    receive_buffer_bytes: Annotated[int, Field(ge=4096)] | None = None
    host_queue_packets: Annotated[int, Field(gt=0)] | None = None
    ecn_threshold_packets: Annotated[int, Field(ge=0)] | None = None
    gap_ms: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] | None = None


class JobTable(Strict):
    """A `[[job]]` table. A transfer's size is that of `model` divided by `scale`, or `bytes`."""

    name: Name
    hosts: Annotated[tuple[str, ...], Field(min_length=2, strict=False)] | None = None
    count: Annotated[int, Field(ge=2)] | None = None
    collective: str = ""
    model: str | None = None
    bytes: Positive | None = None
    scale: Factor = 1.0
    compute_ms: Milliseconds | None = None
    compute_scale: Factor = 1.0
    jitter_ms: Milliseconds = 0.0
    iterations: Positive = 10
    start_ms: Milliseconds = 0.0
    barrier: bool = False
    group: Annotated[int, Field(ge=0)] = 0
    servers: Annotated[int, Field(ge=0)] = 0
    microbatches: Annotated[int, Field(ge=0)] = 0
    parts: Annotated[int, Field(ge=0)] = 0
    unsent_bytes: Annotated[int, Field(ge=4096, le=2**26)] = UNSENT_BYTES


class CrossTable(Strict):
    """A `[[cross]]` table: background traffic from each of `hosts` to random hosts of `to`."""

    hosts: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    to: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    every_ms: Factor = 2000.0
    lasts_ms: Annotated[tuple[Factor, Factor], Field(strict=False)] = (200.0, 2000.0)
    start_ms: Milliseconds = 0.0
    flows: Positive | None = None
    rate_mbps: Factor | None = None


class ExperimentFile(Strict):
    """A whole experiment file, without the policies' tables (`file_model` adds them) and the topology's
    (`controlplane.topology` checks them)."""

    experiment: ExperimentTable
    network: NetworkTable = NetworkTable()
    cross: Annotated[tuple[CrossTable, ...], Field(strict=False)] = ()
    cluster: LiveClusterTable | None = None
    arrivals: ArrivalsTable | None = None
    job: Annotated[tuple[JobTable, ...], Field(strict=False)] = ()
    paper: Annotated[tuple[dict[str, JsonValue], ...], Field(strict=False)] = ()
    """Without effect: claims of papers stand in `entrain/results/claims.toml`."""


@dataclass(frozen=True)
class Job:
    """One job: its hosts (rank i runs on `hosts[i]`) and the specification that its workers read."""

    name: str
    hosts: tuple[str, ...]
    spec: JobSpec
    tables: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """By policy with per-job tables: the policy's table, with the job's own keys merged in."""


@dataclass(frozen=True)
class Combination:
    """The parameters that distinguish one run of an experiment from the others."""

    routing: Routing
    policy: str
    seed: int
    control: str | None = None
    """The jobs' TCP congestion control, or None for the network's."""
    strategy: str | None = None
    """What places the jobs of a cluster. Where the file names their hosts, `VCLOS` or None."""
    load: float | None = None
    """Percent of an iteration that each job communicates alone; None: as its computation in the file has
    it."""


@dataclass(frozen=True)
class Experiment:
    """A checked experiment."""

    name: str
    source: Path
    topology: Topology
    network: NetworkTable
    jobs: tuple[Job, ...]
    routing: tuple[FileRouting, ...]
    policy: tuple[str, ...]
    seeds: tuple[int, ...]
    timeout_s: float
    controls: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()
    start_spread_ms: float = 0.0
    """Each job starts after a random delay of at most this, drawn from the seed."""
    alone_iterations: int = 0
    """Number of iterations that each job first runs alone in the network."""
    sample_ms: float | None = None
    """Bin length of the recorded throughput; None records no throughput."""
    tables: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """The policies' tables, by policy."""
    cross: tuple[CrossTable, ...] = ()
    cluster: ClusterPlan | None = None
    """The cluster and the jobs that arrive at it; `jobs` and `routing` are empty then."""

    def combinations(self) -> Iterator[Combination]:
        """Yield every run, seeds innermost. Each policy chooses the congestion controls it runs with."""
        for load, (routing, strategy) in itertools.product(self.loads or (None,), self._routed()):
            for policy in self.policy:
                for control in policies()[policy].controls(self.controls):
                    for seed in self.seeds:
                        yield Combination(routing, policy, seed, control, strategy, load)

    def _routed(self) -> Iterator[tuple[Routing, str | None]]:
        for routing in self.routing:
            yield ("source", VCLOS) if routing == "vclos" else (routing, None)
        for strategy in self.cluster.table.strategy if self.cluster else ():
            yield routed(strategies()[strategy]), strategy

    def at(self, load: float | None) -> Experiment:
        """Return the experiment whose jobs compute for so long that, alone in the network, they communicate
        for `load` percent of an iteration."""
        if load is None:
            return self
        jobs = []
        for job in self.jobs:
            idle = job.spec.model_copy(update={"compute_ms": 0.0})
            compute_ms = bound_ms(idle, self.rates_mbps(job), mtu=self.topology.mtu) * (100.0 / load - 1.0)
            jobs.append(replace(job, spec=job.spec.model_copy(update={"compute_ms": compute_ms})))
        return replace(self, jobs=tuple(jobs))

    def rates_mbps(self, job: Job) -> tuple[float, ...]:
        """Return the link rates of the job's hosts, by rank."""
        return tuple(self.topology.host_rates_mbps[host] for host in job.hosts)

    def kind(self, job: Job) -> object:
        """Return what makes jobs take equally long in isolation: all but their names, hosts and starts."""
        spec = job.spec.model_dump_json(exclude={"name", "hosts", "port_base", "start_ms"})
        return spec, json.dumps(job.tables, default=dict), self.rates_mbps(job)

    @property
    def alike(self) -> bool:
        """Whether its jobs are all of one kind, so that a mean over them means something."""
        return self.cluster is None and len(set(map(self.kind, self.jobs))) <= 1

    def start_offset_ms(self, seed: int, job: Job) -> float:
        """Return the random delay that `seed` adds to the job's start time in the file."""
        return start_offset(seed, job.name, self.start_spread_ms)

    @property
    def target(self) -> Target:
        """The first switch's target."""
        return self.topology.switches[0].target

    @property
    def gap_ms(self) -> float:
        """A flow silent for this long has left a link: twice the longest queueing delay, at least 5 ms."""
        if self.network.gap_ms is not None:
            return self.network.gap_ms
        holds = max(
            link.queue_packets * link.frame_bytes * 8 / link.rate_mbps / 1e3 for link in self.topology.links
        )
        return max(5.0, 2 * holds)


def load_experiment(path: Path, *, target: Target | None = None, seed: int | None = None) -> Experiment:
    """Load the experiment in the TOML file `path`; `target` and `seed` override the file's.

    Raises BadInput, which names the file, the key and the remedy.
    """
    return parse_experiment(read_toml(path), path, target=target, seed=seed)


def parse_experiment(
    tables: Mapping[str, Any], path: Path, *, target: Target | None = None, seed: int | None = None
) -> Experiment:
    """Return the experiment in `tables`, which are those of the file `path` or were made from them.

    Files that it names are relative to that of `path`. See `load_experiment`.
    """
    if "experiment" not in tables and set(TABLES) & set(tables):
        raise BadInput(
            f"{path}: this is a topology, which has no jobs to run; `entrain up {path}` brings it up. An "
            f'experiment has [experiment] with topology = "{path.name}" and at least one [[job]]'
        )
    if kind_of(tables, str(path)) != "jobs":
        raise BadInput(
            f"{path}: [experiment], kind: this kind has no network of jobs; `entrain run {path}` runs it"
        )
    file = check(file_model(), {key: tables[key] for key in tables if key not in TABLES}, str(path))
    table = file.experiment
    seeds = _unique(path, "seed", table.seed) if seed is None else (seed,)
    plan = _cluster(path, file, tables, seeds)
    if plan is not None:
        topology = plan.topology(plan.table.strategy[0], path.stem, target or table.target or "softswitch")
    else:
        topology = _topology(path, table.topology, tables)
        if (chosen := target or table.target) is not None:
            topology = topology.with_target(chosen)
    _check_routing(path, table.routing, topology)
    controls = _unique(path, "congestion_control", table.congestion_control or ())
    for name in table.policy:
        try:
            spec = ExperimentSpec(plan.routing if plan else table.routing, controls, topology)
            policies()[name].check(spec, getattr(file, name, None))
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
    of_policies = {name: getattr(file, name) for name, policy in policies().items() if policy.table}
    jobs = _jobs(path, file.job, topology, of_policies)
    trained = [job.name for job in jobs if job.spec.collective == DDP]
    if table.load and trained:
        raise BadInput(f"{path}: [experiment], load: job {trained[0]} is really trained; leave out load")
    _check_vclos(path, file, topology, jobs)
    return Experiment(
        name=table.name,
        source=path,
        topology=topology,
        network=file.network,
        jobs=jobs,
        routing=() if plan else _unique(path, "routing", table.routing),
        policy=_unique(path, "policy", table.policy),
        seeds=seeds,
        timeout_s=patience(table.timeout_s),
        controls=controls,
        loads=_unique(path, "load", table.load),
        start_spread_ms=table.start_spread_ms,
        alone_iterations=table.alone_iterations,
        sample_ms=table.sample_ms,
        tables={name: of_policy.model_dump(mode="json") for name, of_policy in of_policies.items()},
        cross=_cross(path, file.cross, topology),
        cluster=plan,
    )


def load_emulated(path: Path) -> tuple[Topology, NetworkTable, ClusterPlan | None]:
    """Load the topology in the TOML file `path`, how it is emulated, and its experiment's cluster, if any.

    A topology file has no `[network]`, so its network has the defaults. Raises BadInput.
    """
    if "experiment" in read_toml(path):
        experiment = load_experiment(path)
        return experiment.topology, experiment.network, experiment.cluster
    return load_topology(path), NetworkTable(), None


def load_network(path: Path) -> Topology:
    """Load the topology in the TOML file `path`: its own, or its experiment's. Raises BadInput."""
    return load_emulated(path)[0]


def topology_tables(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the topology of the TOML file `path`, and the tables that do.

    Raises BadInput.
    """
    tables = read_toml(path)
    named = tables["experiment"].get("topology") if isinstance(tables.get("experiment"), dict) else None
    if isinstance(named, str):
        path = path.parent / named
        tables = read_toml(path)
    return path, {key: tables[key] for key in TABLES if key in tables}


def kind_of(tables: Mapping[str, Any], source: str) -> Kind:
    """Return the kind of experiment in a TOML file's tables. Raises BadInput for an unknown kind."""
    return check(_KindFile, tables, source).experiment.kind


def _cluster(
    path: Path, file: ExperimentFile, tables: Mapping[str, Any], seeds: tuple[int, ...]
) -> ClusterPlan | None:
    """Return the plan of a file with `[cluster]`; None for another. Raises BadInput for keys of the other."""
    if file.cluster is None:
        if file.arrivals is not None:
            raise BadInput(f"{path}: [arrivals]: are jobs of a cluster; add [cluster], or remove it")
        if not file.job:
            raise BadInput(
                f"{path}: [[job]]: this file has no jobs; add [[job]], or [cluster] with [arrivals]"
            )
        return None
    foreign = [f"[[{key}]]" for key in ("job", "cross") if getattr(file, key)]
    foreign += [f"[{key}]" for key in TABLES if key in tables]
    given = file.experiment.model_fields_set
    foreign += [
        f"[experiment], {key}"
        for key in ("routing", "topology", "load", "start_spread_ms", "sample_ms")
        if key in given
    ]
    if foreign:
        raise BadInput(
            f"{path}: {foreign[0]}: not with [cluster], which has its own network and jobs; remove it"
        )
    known = policies()
    for name in file.experiment.policy:
        if not known[name].on_clusters:
            able = ", ".join(each for each in known if known[each].on_clusters)
            raise BadInput(
                f"{path}: [experiment], policy: {name} must know all jobs when it begins, and those of a "
                f"[cluster] come later; use {able}"
            )
    if file.experiment.alone_iterations and file.experiment.policy != ("none",):
        raise BadInput(f"{path}: [experiment], alone_iterations: not with policies on a [cluster]; remove it")
    return cluster_plan(path, file.cluster, file.arrivals, seeds)


def _cross(path: Path, tables: tuple[CrossTable, ...], topology: Topology) -> tuple[CrossTable, ...]:
    for number, table in enumerate(tables):
        where = f"{path}: [[cross]] {number + 1}"
        for key, names in (("hosts", table.hosts or ()), ("to", table.to or ())):
            for name in names:
                _check_host(f"{where}, {key}", name, topology)
        if table.lasts_ms[0] > table.lasts_ms[1]:
            raise BadInput(f"{where}, lasts_ms: put the shorter time first, as in [200, 2000]")
        if (
            table.to is not None
            and len(set(table.to)) == 1
            and table.to[0] in (table.hosts or [host.name for host in topology.hosts])
        ):
            raise BadInput(f"{where}, to: {table.to[0]} cannot send to itself; name another host")
    return tables


def _check_host(where: str, name: str, topology: Topology) -> None:
    if name not in topology.host_by_name:
        first, last = topology.hosts[0].name, topology.hosts[-1].name
        raise BadInput(f"{where}: there is no host {name!r}; the hosts are {first} to {last}")


def _topology(path: Path, reference: str | None, tables: Mapping[str, Any]) -> Topology:
    inline = {key: tables[key] for key in TABLES if key in tables}
    if reference is not None:
        if inline:
            raise BadInput(
                f"{path}: [experiment], topology: names a file, but this file has [{min(inline)}] too; "
                "keep one of them"
            )
        return load_topology(path.parent / reference)
    if not inline:
        raise BadInput(
            f'{path}: no topology; add [topology] with a kind, or topology = "FILE" to [experiment]'
        )
    return parse_topology(inline, str(path), default_name=path.stem)


def _check_routing(path: Path, routing: tuple[str, ...], topology: Topology) -> None:
    if "source" in routing:
        try:
            check_source_routing(topology)
        except BadInput as error:
            raise BadInput(f'{path}: [experiment], routing: "source" {error}') from None


def _check_vclos(path: Path, file: ExperimentFile, topology: Topology, jobs: tuple[Job, ...]) -> None:
    table = file.experiment
    if VCLOS not in table.routing:
        return
    where = f'{path}: [experiment], routing: "vclos"'
    if file.cross:
        raise BadInput(f"{where} gives jobs links of their own, so use no [[cross]] with it")
    try:
        reserved(topology, jobs)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def file_model() -> type[ExperimentFile]:
    """Return `ExperimentFile` extended by all policies' tables, and by the jobs' tables for policies."""
    tables: dict[str, Any] = {
        name: (policy.table, policy.table()) for name, policy in policies().items() if policy.table
    }
    of_jobs = {name: tables[name] for name, policy in policies().items() if policy.table and policy.per_job}
    job = create_model("JobTable", __base__=JobTable, **of_jobs)
    tables["job"] = (Annotated[tuple[job, ...], Field(strict=False)], ())  # type: ignore[valid-type]
    return create_model("ExperimentFile", __base__=ExperimentFile, **tables)


def _jobs(
    path: Path, tables: tuple[JobTable, ...], topology: Topology, of_policies: Mapping[str, Strict]
) -> tuple[Job, ...]:
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            raise BadInput(f"{path}: [[job]], name: {name} is used {count} times; give each job its own name")
    free = _spread(topology, {host for table in tables for host in table.hosts or ()})
    jobs = []
    for number, table in enumerate(tables):
        where = f"{path}: [[job]] {number + 1}"
        names = _hosts(where, table, topology, free)
        keys = table.model_dump(exclude={"hosts", "count", *policies()}, exclude_defaults=True)
        spec = parse_job(
            {
                **keys,
                "name": table.name,
                "hosts": [topology.host_by_name[name].ip for name in names],
                "rendezvous": "unset",
                "output": "unset",
                "port_base": FIRST_PORT + number,
            },
            where,
        )
        jobs.append(Job(table.name, names, spec, _of_job(table, of_policies)))
    return tuple(jobs)


def _of_job(table: JobTable, of_policies: Mapping[str, Strict]) -> dict[str, dict[str, JsonValue]]:
    """Return the job's table by policy. Keys that the job does not set come from the policy's table."""
    return {
        name: {
            **of_policy.model_dump(mode="json"),
            **getattr(table, name).model_dump(mode="json", exclude_unset=True),
        }
        for name, of_policy in of_policies.items()
        if hasattr(table, name)
    }


def _hosts(where: str, table: JobTable, topology: Topology, free: list[str]) -> tuple[str, ...]:
    if (table.hosts is None) == (table.count is None):
        raise BadInput(f"{where}, hosts: give either hosts (their names) or count, not both")
    if table.hosts is not None:
        for name in table.hosts:
            _check_host(f"{where}, hosts", name, topology)
        check_unique(f"{where}, hosts", table.hosts)
        return table.hosts
    count = table.count or 0
    if count > len(free):
        raise BadInput(
            f"{where}, count: {count} hosts requested, but {len(free)} are free; use fewer, or name hosts"
        )
    taken = tuple(free[:count])
    del free[:count]
    return taken


def _spread(topology: Topology, taken: set[str]) -> list[str]:
    """Return the hosts that no job names, taking one from each switch in turn."""
    return in_turn(
        [host.name for host in topology.hosts_of(switch.name) if host.name not in taken]
        for switch in topology.switches
    )


def in_turn(columns: Iterable[Sequence[str]]) -> list[str]:
    """Return the names of all columns, one of each column in turn."""
    rows = itertools.zip_longest(*columns)
    return [name for row in rows for name in row if name is not None]


def check_unique(where: str, hosts: Iterable[str]) -> None:
    """Raise BadInput if a host has several ranks of a job."""
    for name in (name for name, count in Counter(hosts).items() if count > 1):
        raise BadInput(f"{where}: {name} is listed twice; every rank needs its own host")


def _unique(path: Path, key: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value, count in Counter(values).items():
        if count > 1:
            raise BadInput(f"{path}: [experiment], {key}: {value!r} is listed {count} times; list it once")
    return values
