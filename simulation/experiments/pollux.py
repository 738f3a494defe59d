"""The experiment pollux-jct: Pollux on the workloads that its authors published, as their simulator runs them
(Pollux, OSDI 2021, section 5.3)."""

from __future__ import annotations

import numpy as np

from schedulers.placement.cluster import Cluster
from simulation.clusters.adaptive import fastest, train
from simulation.clusters.applications import POLLUX
from simulation.clusters.pollux import Pollux
from simulation.experiments.experiment import Experiment, Point
from simulation.results import JobTimes, Result, Trained
from simulation.traces import read_pollux_workload

CLUSTER = Cluster(leaves=4, spines=1, servers_per_leaf=4, gpus_per_server=4)
"""16 nodes of 4 GPUs."""
PUBLISHED = {
    1: 2088.76875,
    2: 3322.94375,
    3: 2188.49375,
    4: 2720.98125,
    5: 2673.7,
    6: 2446.13125,
    7: 3616.14375,
    8: 2951.90625,
}
"""Mean JCT (s) by workload that the authors publish: petuum/adaptdl, branch osdi21-artifact, commit c793c70,
simulator/results-jobload/pollux-1.0/summary.json."""


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return a point for each workload."""
    return [
        {**base, "policy": policy, "workload": number, "trace": str(POLLUX / f"workload-{number}.csv")}
        for number in PUBLISHED
        for policy in policies
    ]


def run_point(point: Point) -> Result:
    """Run one point. Its limit is the number of jobs."""
    submitted = read_pollux_workload(POLLUX / f"workload-{point['workload']}.csv")[: point["limit"]]
    jobs = train(submitted, CLUSTER, Pollux(seed=point["seed"]))
    times = tuple(
        JobTimes(
            job.name,
            job.arrival,
            job.finish - job.arrival,
            job.waited,
            fastest(job.agent.application.name, CLUSTER),
        )
        for job in jobs
    )
    jct = np.array([each.jct_s for each in times])
    return Result(
        Trained(
            mean_jct_s=float(jct.mean()),
            p99_jct_s=float(np.percentile(jct, 99)),
            max_jct_s=float(jct.max()),
            makespan_s=max(job.finish for job in jobs),
            mean_restarts=float(np.mean([job.restarts for job in jobs])),
            mean_waiting_s=float(np.mean([job.waited for job in jobs])),
            published_jct_s=None if point["limit"] else PUBLISHED[point["workload"]],
        ),
        times,
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "pollux-jct",
        "Pollux: completion times of its authors' workloads",
        None,
        ("pollux",),
        points,
        run_point,
        sends_flows=False,
    ),
)
