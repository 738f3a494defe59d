"""The slot scheduler's experiments: a cluster of GPU servers under a tree, and the time of a decision."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from machine.errors import BadInput
from schedulers.cassini.ccml import best_shift
from schedulers.cassini.profile import Profile, up_down
from schedulers.coflow.rivals import JobPriorities
from schedulers.slots.host import SlotScheduler
from schedulers.slots.kernels import HORIZON
from simulation.collectives import Pipelined, in_parts, parameter_server, ring, training_job
from simulation.engine import Outcome, Simulation, Transport
from simulation.experiments.experiment import Experiment, Point
from simulation.experiments.outcome import drawn_result, recorded_usage, result_of
from simulation.jobs import Coflow, Job
from simulation.latency import decision_latencies
from simulation.policies import coflow_policy, slot_schedulers
from simulation.results import Latency, Result
from simulation.scheduled import ScheduledTransport
from simulation.slotted import SIMULATED, SlottedTransport
from simulation.topology import GBIT, Topology, switch, tree
from simulation.turns import TurnsTransport
from simulation.workloads import MODELS, ClusterJob, cluster_jobs
from workloads import models
from workloads.jobs import start_offset

SLOTS_SET = ("slots", "slots-2", "slots-horizon", "slots-whole", "slots-drawn")
SLOTS_VARIANTS: dict[str, dict[str, Any]] = {
    "slots-horizon": {"reserved": HORIZON},
    "slots-whole": {"reserved": HORIZON, "partial": HORIZON},
    "slots-drawn": {"classes": 1, "redraw": 1},
}
"""Slot scheduler parameters in which the variants differ from `slots`."""
CLUSTER_SET = (*SLOTS_SET, "mcs", "mcs-steps", "ccml", "ccml-equal", "fair", "varys")
ALL = "all"
"""The mix of all models."""


def _cluster(point: Point) -> tuple[Topology, list[ClusterJob]]:
    servers = point["servers"]
    fans = {1000: (10, 10, 10), 100: (10, 5, 2), 40: (10, 2, 2)}
    if servers not in fans:
        raise BadInput(f"{servers} servers: choose one of {sorted(fans)}")
    jobs = cluster_jobs(
        point["limit"] or point["jobs"],
        servers=servers,
        domain=point["domain"],
        models=[m for m in MODELS if point.get("models", ALL) in (ALL, m.name)],
        seed=point["seed"],
        arrival_window_s=point["window_s"],
        iterations=(point["iterations"] // 2, point["iterations"]),
    )
    return tree(fans[servers]), jobs


def _cluster_policies() -> tuple[str, ...]:
    return (*CLUSTER_SET, *slot_schedulers())


def ccml_waits(jobs: list[ClusterJob], topology: Topology) -> list[float]:
    """Return how long CCML delays each job, based on its profile and those of the jobs already on its
    servers."""
    rate = float(topology.capacity[0])
    present: dict[int, list[tuple[Profile, float, float]]] = {}
    waits = []
    for job in jobs:
        alone = job.pipelined().lower_bound(topology) / job.iterations
        sending = max(alone - job.compute_s, 1e-3)
        profile = up_down(job.compute_s, sending, rate)
        hosts = sorted({*job.workers, *job.servers})
        others = [
            [(p, begin - job.arrival_s) for p, begin, end in present.get(h, []) if end > job.arrival_s]
            for h in hosts
        ]
        wait = best_shift(others, profile, rate)
        waits.append(wait)
        begin = job.arrival_s + wait
        for h in hosts:
            present.setdefault(h, []).append((profile, begin, begin + job.iterations * alone))
    return waits


def run_cluster(point: Point) -> Result:
    """Run the slot scheduler or another policy on a cluster of 8-GPU servers under a three-tier tree."""
    topology, cluster = _cluster(point)
    policy, slot_s = point["policy"], point["slot_ms"] / 1000.0
    schedulers = slot_schedulers()
    mcs, known = policy in ("mcs", "mcs-steps"), policy == "varys"
    jobs = [job.staged(steps=policy == "mcs-steps") if mcs else job.pipelined() for job in cluster]
    waits: list[float] | None = None
    flow_times, usage = point.get("flow_times", False), recorded_usage(point, topology)
    if mcs or known:
        # Varys marks what is attainable: it knows all sizes and routes, without dependencies or slots.
        scheduled = ScheduledTransport(
            topology,
            coflow_policy("varys" if known else "mcs"),
            interval=0.0 if known else slot_s,
            blind=mcs,
            flow_times=flow_times,
            usage=usage,
        )
        outcome = Simulation(jobs, scheduled, keep_coflows=flow_times).run()
        seconds = scheduled.decision_seconds
    else:
        if policy in ("ccml", "ccml-equal"):
            waits = ccml_waits(cluster, topology)
            jobs = [
                Job(j.ident, j.arrival + w, j.tasks, j.iterations) for j, w in zip(jobs, waits, strict=True)
            ]
        slotted = SlottedTransport(
            topology,
            "slots" if policy in (*SLOTS_SET, *schedulers) else "equal" if policy == "ccml-equal" else "fair",
            replace(SIMULATED, slot_s=slot_s, **SLOTS_VARIANTS.get(policy, {})),
            rounds=2 if policy == "slots-2" else 1,
            cross=point.get("cross", 0.0),
            seed=point["seed"],
            check=point.get("check"),
            flow_times=flow_times,
            usage=usage,
            scheduler=schedulers.get(policy, SlotScheduler),
        )
        outcome = Simulation(jobs, slotted, keep_coflows=flow_times).run()
        seconds = slotted.decision_seconds
    references = [job.pipelined() for job in cluster]
    network_bytes = sum(
        sum(t.work.bytes for t in j.tasks if isinstance(t.work, Coflow)) * j.iterations for j in references
    )
    return result_of(
        outcome,
        references,
        topology,
        seconds,
        waits=waits,
        flow_times=flow_times,
        usage=usage,
        network_bytes=network_bytes,
    )


def _cluster_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    small = base["limit"] is not None and base["limit"] <= 100
    servers = 100 if small else 1000
    common = {
        **base,
        "servers": servers,
        "jobs": 1200,
        "window_s": 60.0 if not small else 10.0,
        "iterations": 20,
        "slot_ms": 60,
    }
    # Anywhere in 1,000 servers the tree's core is so short that runs take hours; the small cluster shows the
    # effect.
    domains = (10, servers) if small else (10,)
    return [{**common, "policy": p, "domain": d} for d in domains for p in policies]


def _small_cluster(base: Point) -> Point:
    common = {"servers": 100, "jobs": 100, "window_s": 10.0, "iterations": 20, "slot_ms": 60, "domain": 10}
    return {**base, **common}


def _model_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    mixes = (ALL, *(model.name for model in MODELS))
    return [{**_small_cluster(base), "models": m, "policy": p} for m in mixes for p in policies]


def _tau_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**_small_cluster(base), "slot_ms": t, "policy": p} for t in (10, 20, 60, 120) for p in policies]


@dataclass(frozen=True)
class LiveJob:
    """A job of experiments/slots-jct.toml, before its division by 50: servers by number, parameter servers
    first."""

    ident: str
    model: str
    hosts: tuple[int, ...]
    iterations: int
    arrival_s: float = 0.0
    servers: int = 0

    def pipelined(self) -> Job:
        """The job under slot schedulers: computation, then flows that follow one another."""
        return training_job(self.ident, self.arrival_s, self._compute_s, [self._flows], self.iterations)

    def staged(self) -> Job:
        """The job as coflow policies see it: the parts of parameter servers are coflows of their own."""
        if not self.servers:
            return self.pipelined()
        return in_parts(self.ident, self.arrival_s, self._compute_s, self._flows, LIVE_PARTS, self.iterations)

    @property
    def _compute_s(self) -> float:
        return models.MODELS[self.model].compute_ms / COMPUTE_SCALE / 1e3

    @property
    def _flows(self) -> Pipelined | None:
        size, workers = models.MODELS[self.model].bytes, self.hosts[self.servers :]
        servers = self.hosts[: self.servers]
        return parameter_server(workers, servers, size, LIVE_PARTS) if servers else ring(workers, size)


LIVE_JOBS = (
    LiveJob("vgg19-a", "vgg19", (0, 1, 2), 14),
    LiveJob("vgg16-a", "vgg16", (4, 5, 3, 0), 10, 0.7, servers=2),
    LiveJob("gpt2-a", "gpt2", (3, 4, 5), 6, 1.5),
    LiveJob("vgg16-b", "vgg16", (0, 3, 1, 2), 12, 2.6, servers=2),
    LiveJob("resnet50-a", "resnet50", (1, 2, 4, 5), 20, 4.0, servers=2),
)
LIVE_SERVERS = 6
COMPUTE_SCALE = 0.33
LIVE_PARTS = 4
"""In how many parts a parameter server sums up gradients and sends them back (key `parts`)."""
LIVE_SHARE = 0.95
"""The part of a link that the slot scheduler gives away, in payload."""
START_SPREAD_S = 1.0
"""How much later than in `LIVE_JOBS` a job may start, at random."""
DRAWS = 10
"""How often starts are drawn. With seed 0, the first are those of the live experiment's seeds."""
LIVE_SLOTS: dict[str, dict[str, Any]] = {
    "slots": {"slot_s": 0.03},
    "slots-now": {"slot_s": 0.03, "reserved": 1, "partial": 1},
    "slots-turns": {"slot_s": 0.03, "hasten": True},
    "slots-take-back": {"slot_s": 0.03, "hasten": True},
    "slots-15": {"slot_s": 0.015},
    "slots-15-now": {"slot_s": 0.015, "reserved": 1, "partial": 1},
    "slots-15-turns": {"slot_s": 0.015, "hasten": True},
    "slots-15-take-back": {"slot_s": 0.015, "hasten": True},
    "slots-horizon": {"slot_s": 0.03, "reserved": HORIZON},
}
"""Slot scheduler parameters by policy; `slots` has the live experiment's slots, and decides at their
boundaries. With `-now` nobody plans beyond the present slot. With `-turns` flows decide when they do live
(`simulation.turns`). With `-take-back` those that begin also take what flows behind them in the order have
planned."""


def live_topology(gbps: float) -> Topology:
    """Return the live experiment's network, with what the slot scheduler gives away of each link."""
    return switch(LIVE_SERVERS, LIVE_SHARE * gbps * GBIT)


def live_transport(policy: str, topology: Topology, seed: int, check: bool | None) -> Transport:
    """Return what moves flows under a slot scheduler of `LIVE_SLOTS` or a coflow policy, which is fluid."""
    if policy in LIVE_SLOTS:
        settings = replace(SIMULATED, **LIVE_SLOTS[policy])
        if policy.endswith(("-turns", "-take-back")):
            take_back = policy.endswith("-take-back")
            return TurnsTransport(topology, settings, take_back=take_back, seed=seed, check=check)
        return SlottedTransport(topology, "slots", settings, seed=seed, check=check)
    return ScheduledTransport(topology, coflow_policy(policy), check=check)


def live_jobs(policy: str, seed: int) -> list[Job]:
    """Return the live experiment's jobs as `policy` sees them, starting as with this seed
    (`start_spread_ms`)."""

    def late(job: LiveJob) -> float:
        return start_offset(seed, job.ident, START_SPREAD_S)

    return [simulated(replace(job, arrival_s=job.arrival_s + late(job)), policy) for job in LIVE_JOBS]


def simulated(job: LiveJob, policy: str) -> Job:
    """Return the job as a slot scheduler of `LIVE_SLOTS` or a coflow policy sees it."""
    return job.pipelined() if policy in LIVE_SLOTS else job.staged()


def run_bound(point: Point) -> Result:
    """Run the live experiment's jobs as fluid: exact rates, no packets, no cross traffic.

    `fair` is max-min sharing, `varys` serves first what has the least left, and `fixed-order` is the best of
    all fixed orders of the jobs. The others are slot schedulers.
    """
    topology, check = live_topology(point["gbps"]), point.get("check")
    outcomes, every = [], []
    for seed in range(point["seed"] + 1, point["seed"] + 1 + point["draws"]):
        jobs = live_jobs(point["policy"], seed)[: point["limit"]]
        if point["policy"] == "fixed-order":
            ranks = (np.array(order) for order in itertools.permutations(range(len(jobs))))
            orders = (ScheduledTransport(topology, JobPriorities(rank), check=check) for rank in ranks)
            outcome = min((_run(jobs, each) for each in orders), key=_total_jct)
        else:
            outcome = _run(jobs, live_transport(point["policy"], topology, seed, check))
        outcomes.append(outcome)
        every += live_jobs("fair", seed)[: point["limit"]]
    return drawn_result(outcomes, every, topology)


def _run(jobs: list[Job], transport: Transport) -> Outcome:
    return Simulation(jobs, transport, keep_coflows=False).run()


def _total_jct(outcome: Outcome) -> float:
    return sum(record.jct for record in outcome.jobs)


def _bound_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**base, "draws": DRAWS, "gbps": g, "policy": p} for g in (10, 16, 24) for p in policies]


def run_latency(point: Point) -> Result:
    """Time the decisions of hosts with 8 flows."""
    decision = decision_latencies(
        point["flows"], point["horizon"], rounds=point["limit"] or 5000, seed=point["seed"]
    )
    return Result(Latency(decision))


def _latency_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**base, "policy": "slots", "flows": f, "horizon": k} for f in (1, 8, 64) for k in (5, 10, 20)]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "slots-jct",
        "Slot scheduler: completion times on servers with 8 GPUs (figure 15a)",
        None,
        CLUSTER_SET,
        _cluster_points,
        run_cluster,
        accepts=_cluster_policies,
    ),
    Experiment(
        "slots-models",
        "Slot scheduler: jobs of a single model and of mixed models",
        None,
        CLUSTER_SET,
        _model_points,
        run_cluster,
        accepts=_cluster_policies,
    ),
    Experiment(
        "slots-tau",
        "Slot scheduler: effect of the slot length",
        None,
        (*SLOTS_SET, "mcs", "mcs-steps", "fair"),
        _tau_points,
        run_cluster,
        accepts=_cluster_policies,
    ),
    Experiment(
        "slots-bound",
        "Slot scheduler: what the live experiment's jobs would take as fluid",
        None,
        ("fair", "varys", "fixed-order", *LIVE_SLOTS),
        _bound_points,
        run_bound,
        sends_flows=False,
    ),
    Experiment(
        "slots-latency",
        "Slot scheduler: decision time (figure 15b)",
        None,
        ("slots",),
        _latency_points,
        run_latency,
        sends_flows=False,
    ),
)
