"""Parrot's experiments: 60 training jobs on 128 servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from machine.errors import BadInput
from machine.packages import ROOT
from machine.toml import read_toml
from schedulers.coflow.parrot import Parrot
from schedulers.slots.host import PAYLOAD
from simulation.collectives import push_pull
from simulation.engine import Outcome, Simulation, SimulationError
from simulation.experiments.experiment import Experiment, Point, PublicTrace
from simulation.experiments.outcome import drawn_result, recorded_usage, result_of
from simulation.jobs import Job, chain
from simulation.policies import coflow_policies, coflow_policy
from simulation.results import Result
from simulation.scheduled import ScheduledTransport
from simulation.topology import GBIT, Topology, switch
from simulation.traces import INCLUDED, read_tiresias
from simulation.workloads import ParrotScale, parrot_jobs, sample_jobs
from workloads.jobs import start_offset

TIRESIAS = PublicTrace(
    "simulator/60_job.csv", "SymbioticLab/Tiresias", "Apache-2.0", INCLUDED / "tiresias-60-jobs.csv"
)
PARROT_READINGS = ("parrot", "parrot-letter", "parrot-started", "parrot-filling", "parrot-ordered")
PARROT_SET = (
    *("parrot", "parrot-letter", "parrot-wo-wc"),
    *("aalo", "aalo-factor", "aalo-wo-wc"),
    *("lccf", "lccf-factor", "lccf-wo-wc"),
)
RESTS = ("", "-shared", "-factor", "-unsized", "-wo-wc")
RIVAL_READINGS = (*(f"aalo{rest}" for rest in RESTS), *(f"lccf{rest}" for rest in RESTS))
SPEEDS = (10, 40)
LIVE = ROOT / "experiments" / "parrot.toml"
DRAWS = 5
"""How often the live jobs' starts are drawn. With seed 0, they are those of the live experiment's seeds."""
MBPS = 1e6 / 8.0
"""Bytes/s of a Mbit/s."""
THETA_MAX = 0.9

PAPER_GBPS = 10
"""The link rate (Gbit/s) of the values below (Parrot, 6.2)."""
PAPER_GAIN = {"aalo": 58.4, "lccf": 91.3}
"""By how much (%) Parrot's total JCT is below another policy's, at most."""
PAPER_TO_BOUND = 2.75
"""The largest ratio of Parrot's total JCT to its lower bound, at any link rate."""
PAPER_WITHIN = {"parrot": 78.3, "aalo": 48.3, "lccf": 8.3}
"""Jobs within 10 s (%)."""


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
    flow_times, usage = point.get("flow_times", False), recorded_usage(point, topology)
    transport = ScheduledTransport(
        topology,
        policy,
        interval=point["eta_ms"] / 1000.0,
        check=point.get("check"),
        flow_times=flow_times,
        usage=usage,
    )
    outcome = Simulation(jobs, transport).run()
    competitive: dict[str, Any] = {}
    if isinstance(policy, Parrot):
        ratio = check_theorem_4(outcome, jobs, topology, theta)
        competitive = {"competitive_ratio": ratio, "competitive_bound": len(jobs) / (1.0 - theta)}
    return result_of(
        outcome,
        jobs,
        topology,
        transport.decision_seconds,
        flow_times=flow_times,
        usage=usage,
        **competitive,
    )


def live_jobs(seed: int) -> list[Job]:
    """Return the jobs of experiments/parrot.toml, starting as with this seed (`start_spread_ms`): parameter
    servers are the first half of a job's hosts."""
    jobs, live = [], read_toml(LIVE)
    spread_ms = live["experiment"]["start_spread_ms"]
    for job in live["job"]:
        start_ms = job["start_ms"] + start_offset(seed, job["name"], spread_ms)
        places = [int(host.removeprefix("h")) - 1 for host in job["hosts"]]
        half = len(places) // 2
        coflows = push_pull(places[half:], places[:half], job["bytes"])
        jobs.append(chain(job["name"], start_ms / 1e3, coflows, job["iterations"]))
    return jobs


def run_live(point: Point) -> Result:
    """Run a policy on the jobs of the live experiment, as fluid: exact rates, no packets."""
    table, interval = read_toml(LIVE)["topology"], point["eta_ms"] / 1000.0
    topology = switch(2 * table["hosts_per_side"], table["host_rate_mbps"] * MBPS * PAYLOAD)
    outcomes, every = [], []
    for seed in range(point["seed"] + 1, point["seed"] + 1 + point["draws"]):
        policy, jobs = coflow_policy(point["policy"]), live_jobs(seed)[: point["limit"]]
        transport = ScheduledTransport(topology, policy, interval=interval, check=point.get("check"))
        outcomes.append(Simulation(jobs, transport, keep_coflows=False).run())
        every += jobs
    return drawn_result(outcomes, every, topology)


def _live_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [
        {**base, "draws": DRAWS, "eta_ms": e, "policy": p} for e in (1, 10, 50, 100, 200) for p in policies
    ]


def _parrot_point(base: Point, **values: Any) -> Point:
    return {**base, "eta_ms": 10, "iteration_scale": 110.0, "arrival_scale": 10.0, **values}


def _parrot_jct(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_parrot_point(base, gbps=g, policy=p) for g in SPEEDS for p in policies]


def _parrot_scale(base: Point, policies: tuple[str, ...]) -> list[Point]:
    scales = [(i, a) for i in (55.0, 110.0, 150.0, 220.0) for a in (1.0, 10.0, 15.0, 20.0, 30.0, 110.0)]
    return [
        _parrot_point(base, gbps=g, policy=p, iteration_scale=i, arrival_scale=a, scale=f"{i:g}/{a:g}")
        for g in SPEEDS
        for i, a in scales
        for p in policies
    ]


def _parrot_readings(base: Point, policies: tuple[str, ...]) -> list[Point]:
    # With the length of a whole coflow everything is about ten times smaller, so less has to be cut.
    return [
        _parrot_point(
            base,
            gbps=10,
            policy=p,
            length_of=of,
            bytes_per_unit=unit,
            iteration_scale=cut,
            arrival_scale=arrivals,
            scale=f"{cut:g}/{arrivals:g}",
        )
        for of, cut, arrivals in (("flow", 110.0, 10.0), ("flow", 110.0, 110.0), ("coflow", 10.0, 10.0))
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


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "parrot-jct",
        "Parrot: completion times of 60 jobs (figures 5 and 6)",
        TIRESIAS,
        (
            *(
                "parrot",
                "parrot-letter",
                "parrot-started",
                "parrot-filling",
                "parrot-ordered",
                "parrot-wo-wc",
            ),
            *(policy for policy in PARROT_SET if not policy.startswith("parrot")),
            *("d-clas", "d-clas-job", "varys", "fifo", "fair"),
        ),
        _parrot_jct,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-readings",
        "Parrot: who gets leftover bandwidth, in all readings of the paper",
        TIRESIAS,
        (*PARROT_READINGS, *RIVAL_READINGS, "d-clas", "d-clas-job"),
        _parrot_readings,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-scale",
        "Parrot: how far the workload must be scaled down",
        TIRESIAS,
        ("parrot", "parrot-letter", "aalo", "aalo-factor", "lccf", "lccf-factor", "lccf-wo-wc"),
        _parrot_scale,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-eta",
        "Parrot: effect of the observation interval (figure 7)",
        TIRESIAS,
        PARROT_SET,
        _parrot_eta,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-theta",
        "Parrot: effect of the maximum occupancy ratio (figure 8)",
        TIRESIAS,
        (*PARROT_READINGS, "parrot-wo-wc"),
        _parrot_theta,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-load",
        "Parrot: effect of the time between arrivals, 100 jobs (figure 9)",
        TIRESIAS,
        PARROT_SET,
        _parrot_load,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-ps",
        "Parrot: effect of the number of parameter servers (figure 10)",
        TIRESIAS,
        PARROT_SET,
        _parrot_ps,
        run_parrot,
        accepts=coflow_policies,
    ),
    Experiment(
        "parrot-live",
        "Parrot: the jobs of the live experiment",
        None,
        ("parrot", "parrot-filling", "aalo", "aalo-factor", "d-clas-job", "lccf", "lccf-factor", "fair"),
        _live_points,
        run_live,
        accepts=coflow_policies,
        sends_flows=False,
    ),
)
