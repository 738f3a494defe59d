"""Coflows of Facebook's trace, or drawn from its distributions, over one switch."""

from __future__ import annotations

from pathlib import Path

from simulation.engine import Simulation
from simulation.experiments.experiment import Experiment, Point, PublicTrace
from simulation.experiments.outcome import recorded_usage, result_of
from simulation.facebook import facebook_coflows
from simulation.policies import coflow_policies, coflow_policy
from simulation.results import Result
from simulation.scheduled import ScheduledTransport
from simulation.sharing import SharedTransport
from simulation.topology import GBIT, switch
from simulation.traces import CoflowTrace, parse_coflow_benchmark, read_coflow_benchmark

FACEBOOK = PublicTrace("FB2010-1Hr-150-0.txt", "coflow/coflow-benchmark", "none stated")


def _coflow_trace(point: Point) -> CoflowTrace:
    """Read the point's trace, or draw one with the distributions of Facebook's trace."""
    if "trace" in point:
        return read_coflow_benchmark(Path(point["trace"]), limit=point["limit"])
    drawn = facebook_coflows(point["seed"]).splitlines()
    return parse_coflow_benchmark(drawn, Path("drawn coflows"), limit=point["limit"])


def run_coflows(point: Point) -> Result:
    """Run a policy on a coflow-benchmark trace over a non-blocking switch of 1 Gbit/s ports."""
    trace = _coflow_trace(point)
    topology = switch(trace.ports, point["gbps"] * GBIT)
    flow_times, usage = point.get("flow_times", False), recorded_usage(point, topology)
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
    return result_of(
        outcome, trace.jobs, topology, seconds, flow_times=flow_times, usage=usage, flows=trace.flows
    )


def _coflow_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [{**base, "policy": p, "gbps": 1} for p in policies]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "coflow-fb2010",
        "Facebook's coflows: completion times",
        FACEBOOK,
        ("varys", "d-clas", "fair", "fifo"),
        _coflow_points,
        run_coflows,
        accepts=lambda: (*coflow_policies(), "equal"),
    ),
)
