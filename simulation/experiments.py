"""The papers' experiments: what each varies, how one point of it is run, and what the papers report.

A point is a dictionary of plain values; running it is a pure function of it and of the trace file, so points
can run anywhere in any order with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine.errors import BadInput
from schedulers.ccml import best_shift
from schedulers.parrot import Parrot
from schedulers.profile import Profile, up_down
from schedulers.slots import HORIZON, PARTIAL
from simulation import detail, two_jobs
from simulation.engine import Outcome, Simulation, SimulationError
from simulation.facebook import facebook_coflows
from simulation.jobs import Coflow, Job
from simulation.latency import decision_latencies
from simulation.policies import coflow_policy
from simulation.scheduled import ScheduledTransport, percentiles
from simulation.sharing import SharedTransport
from simulation.slotted import SlottedTransport
from simulation.topology import GBIT, Topology, switch, tree
from simulation.traces import (
    INCLUDED,
    CoflowTrace,
    parse_coflow_benchmark,
    read_coflow_benchmark,
    read_tiresias,
)
from simulation.usage import Usage
from simulation.workloads import MODELS, ClusterJob, ParrotScale, cluster_jobs, parrot_jobs, sample_jobs

Point = dict[str, Any]
Result = dict[str, Any]

PARROT_READINGS = ("parrot", "parrot-filling", "parrot-ordered")
PARROT_SET = (*PARROT_READINGS, "parrot-wo-wc", "aalo", "aalo-wo-wc", "lccf", "lccf-wo-wc")
RESTS = ("", "-shared", "-factor", "-unsized", "-wo-wc")
RIVAL_READINGS = (*(f"aalo{rest}" for rest in RESTS), *(f"lccf{rest}" for rest in RESTS))
SPEEDS = (10, 40)
SLOTS_SET = ("slots", "slots-2", "slots-whole", "slots-drawn")
CLUSTER_SET = (*SLOTS_SET, "mcs", "mcs-steps", "ccml", "ccml-equal", "fair", "varys")
ALL = "all"
"""The mix of all models."""
THETA_MAX = 0.9


@dataclass(frozen=True)
class PublicTrace:
    """A trace that is public as `file` of `project`, a GitHub repository. `path` is where it is included;
    None: its licence does not allow that, and the experiment's default is drawn at random."""

    file: str
    project: str
    licence: str
    path: Path | None = None

    @property
    def origin(self) -> str:
        """Where to get it, and under which terms."""
        return f"{self.file} of https://github.com/{self.project} (licence: {self.licence})"


TIRESIAS = PublicTrace(
    "simulator/60_job.csv", "SymbioticLab/Tiresias", "Apache-2.0", INCLUDED / "tiresias-60-jobs.csv"
)
FACEBOOK = PublicTrace("FB2010-1Hr-150-0.txt", "coflow/coflow-benchmark", "none stated")


@dataclass(frozen=True)
class Experiment:
    """`points(limit, seed, policy)` lists what to run; `paper` maps a claim to the paper's words about it."""

    name: str
    title: str
    trace: PublicTrace | None
    policies: tuple[str, ...]
    points: Callable[[Point, tuple[str, ...]], list[Point]]
    run: Callable[[Point], Result]
    paper: dict[str, str]


def _usage(point: Point, topology: Topology) -> Usage | None:
    return Usage(len(topology.capacity), point["usage_s"]) if "usage_s" in point else None


def _result(
    outcome: Outcome,
    jobs: list[Job],
    topology: Topology,
    seconds: list[float],
    *,
    waits: list[float] | None = None,
    flow_times: bool = False,
    usage: Usage | None = None,
) -> Result:
    held = np.array(waits) if waits else np.zeros(len(jobs))
    jct = np.array([record.jct for record in outcome.jobs]) + held
    arrivals = np.array([record.arrival for record in outcome.jobs]) - held
    bound = np.array([job.lower_bound(topology) for job in jobs])
    single = {job.ident for job in jobs if job.iterations == 1 and len(job.tasks) == 1}
    names = [c.job if c.job in single else c.ident for c in outcome.coflows]
    result: Result = {
        "total_jct_s": float(jct.sum()),
        "mean_jct_s": float(jct.mean()),
        "p95_jct_s": float(np.percentile(jct, 95)),
        "p99_jct_s": float(np.percentile(jct, 99)),
        "max_jct_s": float(jct.max()),
        "lower_bound_s": float(bound.sum()),
        "within_10_s": float((jct < 10.0).mean()),
        "bound_within_10_s": float((bound < 10.0).mean()),
        "events": outcome.events,
        "decision": percentiles(seconds),
        "jobs": [
            {
                "job": r.ident,
                "arrival_s": float(a),
                "jct_s": float(t),
                "waiting_s": r.waiting + float(h),
                "lower_bound_s": float(b),
            }
            for r, a, t, h, b in zip(outcome.jobs, arrivals, jct, held, bound, strict=True)
        ],
        "coflows": [
            {
                "coflow": name,
                "arrival_s": c.arrival,
                "cct_s": c.cct,
                "bytes": c.bytes,
            }
            for name, c in zip(names, outcome.coflows, strict=True)
        ],
    }
    if flow_times:
        result["flow_times"] = detail.flow_columns(names, outcome.coflows)
    if usage is not None:
        end = max(record.finish for record in outcome.jobs)
        result["usage"] = detail.usage_record(usage, topology, end)
    return result


def check_theorem_4(outcome: Outcome, jobs: list[Job], topology: Topology, theta_max: float) -> float:
    """Return total completion time over its lower bound; raise SimulationError above jobs / (1 - θ_max)
    (Parrot, theorem 4)."""
    total = sum(record.finish for record in outcome.jobs)
    bound = sum(job.arrival + job.lower_bound(topology) for job in jobs)
    if total > len(jobs) / (1.0 - theta_max) * bound:
        raise SimulationError(
            f"theorem 4: total completion time {total:g} s exceeds {bound:g} s times jobs / (1 - θ_max)"
        )
    return total / bound


def _parrot_workload(point: Point) -> list[Job]:
    trace = read_tiresias(Path(point["trace"]))
    scale = ParrotScale(
        iterations=point["iteration_scale"],
        arrivals=point["arrival_scale"],
        length_of=point.get("length_of", "flow"),
    )
    try:
        jobs = parrot_jobs(trace, scale=scale, max_servers_per_job=point.get("delta"), seed=point["seed"])
    except BadInput as problem:
        raise BadInput(f"{point['trace']}, {problem}") from None
    if "gap_ms" in point:
        jobs = sample_jobs(jobs, 100, point["gap_ms"] / 1000.0, seed=point["seed"] + 1)
    return jobs[: point["limit"]]


def run_parrot(point: Point) -> Result:
    """Run a policy on Parrot's workload over 128 servers."""
    jobs = _parrot_workload(point)
    topology = switch(128, point["gbps"] * GBIT)
    theta = point.get("theta_max", THETA_MAX)
    policy = coflow_policy(point["policy"])
    if isinstance(policy, Parrot):
        policy.theta_max, policy.bytes_per_unit = theta, point.get("bytes_per_unit", 1.0)
    flow_times, usage = point.get("flow_times", False), _usage(point, topology)
    transport = ScheduledTransport(
        topology,
        policy,
        interval=point["eta_ms"] / 1000.0,
        check=point.get("check"),
        flow_times=flow_times,
        usage=usage,
    )
    outcome = Simulation(jobs, transport).run()
    result = _result(outcome, jobs, topology, transport.decision_seconds, flow_times=flow_times, usage=usage)
    if isinstance(policy, Parrot):
        result["competitive_ratio"] = check_theorem_4(outcome, jobs, topology, theta)
        result["competitive_bound"] = len(jobs) / (1.0 - theta)
    return result


def _parrot_point(base: Point, **values: Any) -> Point:
    return {**base, "eta_ms": 10, "iteration_scale": 110.0, "arrival_scale": 110.0, **values}


def _parrot_jct(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_parrot_point(base, gbps=g, policy=p) for g in SPEEDS for p in policies]


def _parrot_scale(base: Point, policies: tuple[str, ...]) -> list[Point]:
    scales = [(i, a) for i in (55.0, 110.0, 220.0) for a in (1.0, 10.0, 30.0, 110.0)]
    return [
        _parrot_point(base, gbps=10, policy=p, iteration_scale=i, arrival_scale=a, scale=f"{i:g}/{a:g}")
        for i, a in scales
        for p in policies
    ]


def _parrot_readings(base: Point, policies: tuple[str, ...]) -> list[Point]:
    # A whole coflow's length makes everything some tenfold smaller, so that less has to be cut.
    return [
        _parrot_point(
            base,
            gbps=10,
            policy=p,
            length_of=of,
            bytes_per_unit=unit,
            iteration_scale=cut,
            arrival_scale=cut,
            scale=f"{cut:g}/{cut:g}",
        )
        for of, cut in (("flow", 110.0), ("coflow", 10.0))
        for p in policies
        for unit in ((1.0, 1e-6) if p in PARROT_READINGS else (1.0,))
    ]


def _parrot_eta(base: Point, policies: tuple[str, ...]) -> list[Point]:
    etas = (1, 5, 10, 20, 50, 100)
    return [_parrot_point(base, gbps=g, policy=p, eta_ms=e) for g in SPEEDS for e in etas for p in policies]


def _parrot_theta(base: Point, policies: tuple[str, ...]) -> list[Point]:
    thetas = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    return [
        _parrot_point(base, gbps=g, policy=p, theta_max=t) for g in SPEEDS for t in thetas for p in policies
    ]


def _parrot_load(base: Point, policies: tuple[str, ...]) -> list[Point]:
    gaps = (100, 250, 500, 750, 1000)
    return [_parrot_point(base, gbps=g, policy=p, gap_ms=m) for g in SPEEDS for m in gaps for p in policies]


def _parrot_ps(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [
        _parrot_point(base, gbps=g, policy=p, delta=d)
        for g in SPEEDS
        for d in (2, 4, 8, 16)
        for p in policies
    ]


def _coflow_trace(point: Point) -> CoflowTrace:
    """Read the point's trace, or draw one with the distributions of Facebook's."""
    if "trace" in point:
        return read_coflow_benchmark(Path(point["trace"]), limit=point["limit"])
    drawn = facebook_coflows(point["seed"]).splitlines()
    return parse_coflow_benchmark(drawn, Path("drawn coflows"), limit=point["limit"])


def run_coflows(point: Point) -> Result:
    """Run a policy on a coflow-benchmark trace over a non-blocking switch of 1 Gbit/s ports."""
    trace = _coflow_trace(point)
    topology = switch(trace.ports, point["gbps"] * GBIT)
    flow_times, usage = point.get("flow_times", False), _usage(point, topology)
    seconds: list[float] = []
    if point["policy"] in ("fair", "equal"):
        # Exact, and it touches only what an event changes; the policy of this name decides anew at each
        # flow's end.
        sharing = SharedTransport(
            topology, sharing="max-min" if point["policy"] == "fair" else "equal", usage=usage
        )
        outcome = Simulation(trace.jobs, sharing).run()
    else:
        transport = ScheduledTransport(
            topology,
            coflow_policy(point["policy"]),
            check=point.get("check"),
            flow_times=flow_times,
            usage=usage,
        )
        outcome = Simulation(trace.jobs, transport).run()
        seconds = transport.decision_seconds
    result = _result(outcome, trace.jobs, topology, seconds, flow_times=flow_times, usage=usage)
    result["flows"] = trace.flows
    return result


def _coflow_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**base, "policy": p, "gbps": 1} for p in policies]


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


def ccml_waits(jobs: list[ClusterJob], topology: Topology) -> list[float]:
    """Return how long CCML lets each job wait, from its profile alone and those of the jobs already on its
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
    """Run the slot scheduler or a rival on a cluster of servers with 8 GPUs under a three-tier tree."""
    topology, cluster = _cluster(point)
    policy, slot_s = point["policy"], point["slot_ms"] / 1000.0
    mcs, known = policy in ("mcs", "mcs-steps"), policy == "varys"
    jobs = [job.staged(steps=policy == "mcs-steps") if mcs else job.pipelined() for job in cluster]
    waits: list[float] | None = None
    flow_times, usage = point.get("flow_times", False), _usage(point, topology)
    if mcs or known:
        # Varys as a mark of what could be had: all sizes and routes known, no dependencies, no slots.
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
            "slots" if policy in SLOTS_SET else "equal" if policy == "ccml-equal" else "fair",
            slot_s=slot_s,
            rounds=2 if policy == "slots-2" else 1,
            partial=HORIZON if policy == "slots-whole" else PARTIAL,
            drawn=policy == "slots-drawn",
            cross=point.get("cross", 0.0),
            seed=point["seed"],
            check=point.get("check"),
            flow_times=flow_times,
            usage=usage,
        )
        outcome = Simulation(jobs, slotted, keep_coflows=flow_times).run()
        seconds = slotted.decision_seconds
    references = [job.pipelined() for job in cluster]
    result = _result(outcome, references, topology, seconds, waits=waits, flow_times=flow_times, usage=usage)
    result["network_bytes"] = sum(
        sum(t.work.bytes for t in j.tasks if isinstance(t.work, Coflow)) * j.iterations for j in references
    )
    return result


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


def run_latency(point: Point) -> Result:
    """Time the decisions of hosts with 8 flows."""
    return {
        "decision": decision_latencies(
            point["flows"], point["horizon"], rounds=point["limit"] or 5000, seed=point["seed"]
        )
    }


def _latency_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**base, "policy": "slots", "flows": f, "horizon": k} for f in (1, 8, 64) for k in (5, 10, 20)]


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "parrot-jct",
            "Parrot, figures 5 and 6: completion times of 60 jobs",
            TIRESIAS,
            (*PARROT_SET, "d-clas", "d-clas-job", "varys", "fifo", "fair"),
            _parrot_jct,
            run_parrot,
            {
                "parrot against aalo, 10 Gbit/s": "-58.4 %",
                "parrot against lccf, 10 Gbit/s": "-91.3 %",
                "parrot / lower bound": "at most 2.75",
                "within 10 s at 10 Gbit/s": "parrot 78.3 %, aalo 48.3 %, lccf 8.3 %",
            },
        ),
        Experiment(
            "parrot-readings",
            "Parrot's text read in other ways: who gets what is left over",
            TIRESIAS,
            (*PARROT_READINGS, *RIVAL_READINGS),
            _parrot_readings,
            run_parrot,
            {
                "parrot against aalo, 10 Gbit/s": "-58.4 %",
                "parrot against lccf, 10 Gbit/s": "-91.3 %",
                "parrot / lower bound": "at most 2.75",
                "within 10 s at 10 Gbit/s": "parrot 78.3 %, aalo 48.3 %, lccf 8.3 %",
            },
        ),
        Experiment(
            "parrot-scale",
            "Parrot's workload: how far iterations and arrivals must be cut",
            TIRESIAS,
            (*PARROT_READINGS, "aalo", "lccf"),
            _parrot_scale,
            run_parrot,
            {"within 10 s at 10 Gbit/s": "parrot 78.3 %, aalo 48.3 %, lccf 8.3 %"},
        ),
        Experiment(
            "parrot-eta",
            "Parrot, figure 7: observing interval",
            TIRESIAS,
            PARROT_SET,
            _parrot_eta,
            run_parrot,
            {"parrot worse than aalo": "from 50 ms at 10 Gbit/s, from 10 ms at 40 Gbit/s"},
        ),
        Experiment(
            "parrot-theta",
            "Parrot, figure 8: maximum occupancy ratio",
            TIRESIAS,
            (*PARROT_READINGS, "parrot-wo-wc"),
            _parrot_theta,
            run_parrot,
            {"total JCT": "lower for θ_max below 0.75"},
        ),
        Experiment(
            "parrot-load",
            "Parrot, figure 9: time between arrivals, 100 jobs",
            TIRESIAS,
            PARROT_SET,
            _parrot_load,
            run_parrot,
            {
                "parrot against aalo, 10 Gbit/s": "up to -61.6 %",
                "parrot against lccf, 10 Gbit/s": "up to -80.9 %",
            },
        ),
        Experiment(
            "parrot-ps",
            "Parrot, figure 10: most parameter servers per job",
            TIRESIAS,
            PARROT_SET,
            _parrot_ps,
            run_parrot,
            {
                "parrot against aalo, 10 (40) Gbit/s": "up to -51.9 % (-2.9 %)",
                "parrot against lccf, 10 (40) Gbit/s": "up to -73.2 % (-61.6 %)",
                "parrot / lower bound": "1.26 to 2.6",
            },
        ),
        Experiment(
            "slots-jct",
            "Slot scheduler, figure 15 (a): JCT on servers of 8 GPUs",
            None,
            CLUSTER_SET,
            _cluster_points,
            run_cluster,
            {"slots against mcs": "-33.6 %", "slots against ccml": "-23.3 %"},
        ),
        Experiment(
            "slots-models",
            "Slot scheduler: jobs of one model, and of several",
            None,
            CLUSTER_SET,
            _model_points,
            run_cluster,
            {},
        ),
        Experiment(
            "slots-tau",
            "Slot scheduler: length of a slot",
            None,
            (*SLOTS_SET, "mcs", "mcs-steps", "fair"),
            _tau_points,
            run_cluster,
            {},
        ),
        Experiment(
            "slots-latency",
            "Slot scheduler, figure 15 (b): time of a decision",
            None,
            ("slots",),
            _latency_points,
            run_latency,
            {"decisions within 1.5 ms": "90 %"},
        ),
        Experiment(
            "coflow-fb2010",
            "Facebook's coflows: coflow completion time",
            FACEBOOK,
            ("varys", "d-clas", "fair", "fifo"),
            _coflow_points,
            run_coflows,
            {},
        ),
        Experiment(
            "mltcp-two-jobs",
            "MLTCP: iteration times of two equal jobs on one link",
            None,
            two_jobs.POLICIES,
            two_jobs.points,
            two_jobs.run_point,
            {
                "iterations until interleaved": "about 30",
                "mean and p99 iteration": "up to 1.9x and 2.7x shorter",
            },
        ),
    )
}


def points(
    name: str,
    trace: Path | None,
    policy: str | None,
    limit: int | None,
    seed: int,
    *,
    flow_times: bool = False,
    usage_s: float | None = None,
) -> tuple[Experiment, list[Point]]:
    """Return the experiment called `name` and its points; raise BadInput for what does not exist or makes no
    sense. `flow_times` records the time of each flow, `usage_s` the links' utilisation in bins of so many s.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"experiment {name!r} is unknown; use one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    if limit is not None and limit < 1:
        raise BadInput(f"--limit is {limit}; give at least 1")
    policies = experiment.policies
    if policy is not None:
        policies = tuple(policy.split(","))
        for one in policies:
            if experiment.run in (run_cluster, run_latency, two_jobs.run_point):
                if one not in experiment.policies:
                    raise BadInput(
                        f"policy {one!r} is unknown to {name}; use one of {', '.join(experiment.policies)}"
                    )
            elif not (one == "equal" and experiment.run is run_coflows):
                coflow_policy(one)
    if trace is not None and experiment.trace is None:
        raise BadInput(f"{name} makes its own workload; leave out --trace")
    if usage_s is not None and not (math.isfinite(usage_s) and usage_s > 0.0):
        raise BadInput(f"--usage is {usage_s}; give the width of a bin, a positive number of seconds")
    if (flow_times or usage_s is not None) and experiment.run in (run_latency, two_jobs.run_point):
        raise BadInput(f"{name} has no flows over a network to record; leave out --flows and --usage")
    base: Point = {"experiment": name, "limit": limit, "seed": seed}
    # Only what is asked for, so that results kept without either are found again.
    if flow_times:
        base["flow_times"] = True
    if usage_s is not None:
        base["usage_s"] = usage_s
    if experiment.trace is not None:
        path = trace or experiment.trace.path
        if path is not None and not path.is_file():
            default = "the included one" if experiment.trace.path else "one drawn with its distributions"
            raise BadInput(
                f"{path}: there is no such file; get {experiment.trace.origin}, "
                f"or leave out --trace for {default}"
            )
        if path is not None:
            base["trace"] = str(path.resolve())
    return experiment, experiment.points(base, policies)
