"""The slot scheduler under the load of its testbed: jobs queue for GPUs (flow-scheduling paper, VI-A).

Six servers have two GPUs each. A job of a random model has three workers that form a ring, or two workers
and two parameter servers. Workers take a GPU each, on different servers; parameter servers take none. A job
that finds too few GPUs waits, and those behind it wait with it.

The paper takes its arrivals from Google's trace, scaled. Here they are those of Pollux' workloads, which come
from the busiest hours of Microsoft's Philly trace (Pollux, OSDI 2021, section 5.1), scaled to a load: the
part of the GPUs that would be in use if no job waited or met another.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schedulers.placement.cluster import Cluster, Placement, Request
from schedulers.placement.stages import drawn_order
from schedulers.placement.strategies import STRATEGIES
from simulation.clusters.applications import POLLUX
from simulation.engine import Simulation
from simulation.experiments.experiment import Experiment, Point
from simulation.experiments.outcome import drawn_result
from simulation.experiments.slots import LIVE_SERVERS, LiveJob, live_topology, live_transport, simulated
from simulation.gpu_queue import GpuQueue, Queued
from simulation.jobs import Job
from simulation.results import Result
from simulation.topology import Topology
from simulation.traces import read_pollux_workload

CLUSTER = Cluster(leaves=1, spines=1, servers_per_leaf=LIVE_SERVERS, gpus_per_server=2)
MIX = (("vgg19", 3, 0), ("vgg16", 2, 2), ("resnet50", 2, 2), ("gpt2", 3, 0))
"""Models, with their workers and parameter servers."""
JOBS, ITERATIONS = 24, 100
LOADS = (60, 75, 90)
"""Percent."""
GBPS = 10
WORKLOADS = 8
"""Draws of the workload: each has the arrivals of another one of Pollux' workloads."""
POLICIES = ("fair", "varys", "slots", "slots-15", "slots-15-now")


def queued(job: LiveJob, policy: str, topology: Topology) -> Queued:
    """Return the job as one that waits for GPUs. Parameter servers are on other servers than its workers."""

    def placed(placement: Placement) -> Job:
        workers = [gpu // CLUSTER.gpus_per_server for gpu in placement.gpus]
        others = [server for server in drawn_order(job.ident, LIVE_SERVERS) if server not in workers]
        return simulated(replace(job, hosts=(*others[: job.servers], *workers)), policy)

    alone_s = job.staged().lower_bound(topology)
    return Queued(Request(job.ident, workers_of(job)), job.arrival_s, alone_s, placed)


def workers_of(job: LiveJob) -> int:
    """Return how many GPUs a job has."""
    return len(job.hosts) - job.servers


def workload(point: Point, number: int, topology: Topology) -> list[LiveJob]:
    """Return the jobs of draw `number`, with the arrivals of Pollux' workload of this number (1 to 8).

    Their hosts are any: the queue chooses them.
    """
    count = point["limit"] or point["jobs"]
    submitted = [job.arrival_s for job in read_pollux_workload(POLLUX / f"workload-{number}.csv")[:count]]
    picks = np.random.default_rng((point["seed"], number)).integers(0, len(MIX), len(submitted))
    jobs = []
    for i, pick in enumerate(picks):
        model, workers, servers = MIX[pick]
        name = f"{point['seed']}-{number}-{i}-{model}"
        jobs.append(
            LiveJob(name, model, tuple(range(workers + servers)), point["iterations"], servers=servers)
        )
    gpu_s = sum(workers_of(job) * job.staged().lower_bound(topology) for job in jobs)
    span_s = gpu_s / (CLUSTER.gpus * point["load_percent"] / 100.0)
    first, last = submitted[0], submitted[-1]
    scale = span_s / (last - first) if last > first else 0.0
    return [replace(job, arrival_s=(at - first) * scale) for job, at in zip(jobs, submitted, strict=True)]


def run_load(point: Point) -> Result:
    """Run one point: its draws, one after another. Its limit is the number of jobs."""
    topology = live_topology(point["gbps"])
    outcomes, every = [], []
    for number in range(1, point["draws"] + 1):
        drawn = workload(point, number, topology)
        jobs = [simulated(job, point["policy"]) for job in drawn]
        every += [job.staged() for job in drawn]
        transport = live_transport(point["policy"], topology, point["seed"] + number, point.get("check"))
        waiting = [queued(job, point["policy"], topology) for job in drawn]
        queue = GpuQueue(waiting, CLUSTER, STRATEGIES["apart"])
        outcomes.append(Simulation(jobs, transport, admission=queue, keep_coflows=False).run())
    return drawn_result(outcomes, every, topology)


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the points to run: one for each load and policy."""
    common = {**base, "jobs": JOBS, "iterations": ITERATIONS, "gbps": GBPS, "draws": WORKLOADS}
    return [{**common, "load_percent": load, "policy": policy} for load in LOADS for policy in policies]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "slots-load",
        "Slot scheduler: jobs that queue for the testbed's GPUs, as fluid",
        None,
        POLICIES,
        points,
        run_load,
        sends_flows=False,
    ),
)
