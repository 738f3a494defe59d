"""Cassini's evaluation (thesis, 4.5): Themis and Pollux with and without Cassini's module, on a simulated
testbed of 24 servers.

A point pools several draws of its trace. Iteration times are those from the start of one iteration to the
start of the next, so what Cassini makes jobs wait counts. In dynamic traces only iterations count that begin
after the new jobs arrive.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from machine.packages import ROOT
from schedulers.cassini.affinity import Link, interleave
from schedulers.compiled import Ints, Routes
from schedulers.placement.cluster import Cluster
from simulation.clusters import arrivals, network, training
from simulation.clusters.arrivals import ModelJob
from simulation.clusters.models import MODELS
from simulation.clusters.pollux import Pollux
from simulation.clusters.scheduler import ClusterScheduler, Ideal, Random
from simulation.clusters.shared import Outcome, SharedCluster
from simulation.clusters.themis import Themis
from simulation.experiments.experiment import Experiment, Point
from simulation.results import JobTimes, ModelTimes, Placed, Result, Snapshot, TrainingTimes
from simulation.topology import Topology
from workloads.profiles import read_profiles

SCHEDULERS: dict[str, Callable[[int], ClusterScheduler]] = {
    "ideal": lambda seed: Ideal(),
    "random": lambda seed: Random(seed=seed),
    "themis": lambda seed: Themis(seed=seed),
    "pollux": lambda seed: Pollux(seed=seed),
}
WITH = "-cassini"
"""The end of a policy's name that stands for a scheduler with Cassini's module."""

DYNAMIC = {
    "mixed": (("VGG16", "WideResNet101", "RoBERTa", "XLM"), ("DLRM", "ResNet50")),
    "model parallel": (("GPT1", "GPT2", "GPT3", "DLRM"), ("GPT3", "DLRM")),
}
"""Dynamic traces: the models of the jobs that are present, and of those that arrive (4.5.3, 4.5.4)."""
PROFILES = ROOT / "experiments" / "profiles-table-4.3.toml"


def _jobs(point: Point, seed: int) -> list[ModelJob]:
    gpus = network.cluster(point["gpus_per_server"]).gpus
    if point["arrivals"] == "poisson":
        models = arrivals.TRACES[point["models"]]
        load = point["load_percent"] / 100.0
        return arrivals.poisson(models, point["limit"] or point["jobs"], load, gpus, seed=seed)
    present, new = ([MODELS[name] for name in names] for names in DYNAMIC[point["models"]])
    return arrivals.dynamic(present, new, gpus, seed=seed)


def run_cluster(point: Point) -> Result:
    """Run a scheduler on some draws of a trace."""
    name = point["policy"]
    make = SCHEDULERS[name.removesuffix(WITH)]
    since = arrivals.BURST_S if point["arrivals"] == "dynamic" else 0.0
    records: list[training.State] = []
    models: list[np.ndarray[tuple[int], np.dtype[np.str_]]] = []
    times: list[JobTimes] = []
    scores: list[float] = []
    placed: list[Placed] = []
    minutes, adjusted, moved = 0.0, 0, 0
    for draw in range(point["draws"]):
        seed = point["seed"] * 1000 + draw
        jobs = _jobs(point, seed)
        done = SharedCluster(
            jobs,
            make(seed),
            network.cluster(point["gpus_per_server"]),
            network.testbed(),
            cassini=name.endswith(WITH),
            seed=seed,
        ).run()
        counted = done.records[done.records["began"] >= since]
        records.append(counted)
        models.append(np.array([job.model.name for job in jobs])[counted["job"]])
        scores += done.scores
        placed.append(done.placed)
        minutes += float(done.records["seconds"].sum()) / 60.0
        adjusted += int(done.adjusted.sum())
        moved += int(done.restarts.sum())
        times += _times(jobs, done, draw)
    pooled, of = np.concatenate(records), np.concatenate(models)
    seconds, ratio = pooled["seconds"], pooled["seconds"] / pooled["alone"]
    jct = np.array([each.jct_s for each in times])
    figures = TrainingTimes(
        mean_iteration_s=float(seconds.mean()),
        p99_iteration_s=float(np.percentile(seconds, 99)),
        max_iteration_s=float(seconds.max()),
        mean_to_alone=float(ratio.mean()),
        p99_to_alone=float(np.percentile(ratio, 99)),
        marks_per_iteration=float(pooled["marks"].mean()),
        percentiles_s=tuple(np.percentile(seconds, range(101)).round(5).tolist()),
        mean_jct_s=float(jct.mean()),
        p99_jct_s=float(np.percentile(jct, 99)),
        restarts=moved,
        score=float(np.mean(scores)) if scores else None,
        adjustments_per_minute=adjusted / minutes,
        waited=float(pooled["waited"].sum() / seconds.sum()),
        by_model=tuple(
            ModelTimes(
                model,
                int(mine.sum()),
                float(seconds[mine].mean()),
                float(np.percentile(seconds[mine], 99)),
                float(ratio[mine].mean()),
                float(pooled["marks"][mine].mean()),
            )
            for model in dict.fromkeys(sorted(of.tolist()))
            for mine in [of == model]
        ),
        placed=Placed(
            *(sum(getattr(each, name) for each in placed) for name in ("jobs", "sharing", "paced", "shifted"))
        ),
    )
    return Result(figures, tuple(times))


def _times(jobs: list[ModelJob], done: Outcome, draw: int) -> list[JobTimes]:
    waited = np.array([done.finish[n] - job.arrival_s for n, job in enumerate(jobs)])
    np.subtract.at(waited, done.records["job"], done.records["seconds"])
    return [
        JobTimes(
            f"{draw}/{job.ident}",
            job.arrival_s,
            float(done.finish[n] - job.arrival_s),
            max(float(waited[n]), 0.0),
            job.alone_s,
        )
        for n, job in enumerate(jobs)
    ]


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the traces of figures 4.11 to 4.15 and 4.17. The point's limit is the number of Poisson jobs."""
    poisson = {"arrivals": "poisson", "gpus_per_server": 1, "jobs": 60, "draws": 3}
    dynamic = {"arrivals": "dynamic", "gpus_per_server": 1, "load_percent": 100, "draws": 10}
    traces: list[Point] = [
        *({**poisson, "models": "mixed", "load_percent": load} for load in (80, 90, 100)),
        {**poisson, "models": "model parallel", "load_percent": 90},
        {**dynamic, "models": "mixed"},
        {**dynamic, "models": "model parallel"},
        {**dynamic, "models": "mixed", "gpus_per_server": 2},
    ]
    return [{**base, **trace, "policy": policy} for trace in traces for policy in policies]


# -- snapshots


def _one_link(jobs: int, capacity: float) -> Topology:
    """Two hosts for each job; all flows to a higher number share one link, all others another."""

    def route(src: Ints, dst: Ints, key: Ints) -> Routes:
        return np.where(src < dst, 0, 1)[:, None].astype(np.int32)

    return Topology("link", 2 * jobs, np.full(2, capacity), ("there", "back"), route)


def run_snapshot(point: Point) -> Result:
    """Run the jobs of a snapshot of table 4.3, all of which begin together, on one link."""
    file = read_profiles(PROFILES)
    (link,) = (each for each in file.links if each.name == point["group"])
    cassini = point["policy"].endswith(WITH)
    model, count = MODELS["VGG16"], point["limit"] or point["iterations"]
    jobs = [ModelJob(name, model, 0, count, 2, 0.0, measured=file.profiles[name]) for name in link.jobs]
    cluster = Cluster(leaves=1, spines=1, servers_per_leaf=2 * len(jobs), gpus_per_server=1)
    done = SharedCluster(
        jobs,
        Ideal() if point["policy"] == "ideal" else Random(seed=point["seed"]),
        cluster,
        _one_link(len(jobs), link.capacity),
        cassini=cassini,
        seed=point["seed"],
    ).run()
    records = done.records[done.records["began"] < np.nanmin(done.finish)]
    each = [records[records["job"] == n] for n in range(len(jobs))]
    found = interleave(file.profiles, [Link(link.name, link.capacity, link.jobs)])
    return Result(
        Snapshot(
            score=found.score,
            shifts_s=tuple(found.shifts[name] for name in link.jobs),
            communication_s=tuple(float(mine["sent_s"].mean()) for mine in each),
            iterations_s=tuple(float(mine["seconds"].mean()) for mine in each),
            marks_per_iteration=float(records["marks"].mean()),
            adjustments=int(done.adjusted.sum()),
            waited=float(records["waited"].sum() / records["seconds"].sum()),
        ),
        tuple(_times(jobs, done, 0)),
    )


def snapshot_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the five snapshots. The point's limit is the number of iterations."""
    return [
        {**base, "group": f"snapshot{n}", "iterations": 1000, "policy": policy}
        for n in range(1, 6)
        for policy in policies
    ]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "cassini-themis",
        "Cassini: Themis with and without it (figures 4.11 to 4.15 and 4.17)",
        None,
        ("ideal", "random", "themis", "themis-cassini"),
        points,
        run_cluster,
        sends_flows=False,
    ),
    Experiment(
        "cassini-pollux",
        "Cassini: Pollux with and without it (figures 4.13 to 4.15)",
        None,
        ("ideal", "pollux", "pollux-cassini"),
        points,
        run_cluster,
        sends_flows=False,
    ),
    Experiment(
        "cassini-snapshots",
        "Cassini: snapshots of jobs that share a link (table 4.3)",
        None,
        ("ideal", "themis", "themis-cassini"),
        snapshot_points,
        run_snapshot,
        sends_flows=False,
    ),
)
