"""vClos' simulations: jobs that queue for a GPU cluster, under strategies that place and route them.

Switches have 64 ports (4.1): leaves 32 GPUs and 32 uplinks, spines 64 links, so 512 GPUs have 8 spines with
four links to each leaf, and 2,048 GPUs 32 spines with one. Servers have 8 GPUs; NICs 100 Gbit/s, and 1,000
within a server. docs/simulator.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from machine.errors import BadInput
from schedulers.placement.cluster import Cluster
from simulation.engine import Simulation
from simulation.experiments.experiment import Experiment, Point, PublicTrace
from simulation.results import ClusterTimes, Collisions, JobTimes, Result
from simulation.tenancy import ClusterNetwork, Tenancy, Tenant, offered_load, transport
from simulation.tenants import SCALED, TRACE, by_size, sized, tenants
from simulation.topology import GBIT
from workloads.strategies import strategies

REQUESTS = PublicTrace("base_conf_template/request_sequence", "nothepeople/RapidNetSim", "none stated")

PAPER_SET = ("best", "ocs-vclos", "vclos", "source", "balanced-ecmp", "ecmp")
RIVALS = ("least-loaded", "crux", "crux-ecmp")
"""What an operator can do without isolation, and not in the paper."""
ALL_SET = (*PAPER_SET[:4], *RIVALS, "balanced-ecmp", "recmp", "ecmp")
LOAD_SET = (*PAPER_SET, "ocs-relaxed")

MEAN_DURATION_S = 2550.0
"""Mean running time of a job alone, which the paper does not state. With it `best` comes near the paper's
mean completion time at λ = 100 s (table 5)."""


def cluster_of(point: Point) -> Cluster:
    """Return the point's cluster. Raises BadInput where leaves or servers do not divide it."""
    gpus, per_leaf, per_server = point["gpus"], point["gpus_per_leaf"], point["gpus_per_server"]
    if gpus % per_leaf or per_leaf % per_server or per_leaf % point["spines"]:
        raise BadInput(
            f"{gpus} GPUs, {per_leaf} per leaf, {per_server} per server: each must divide the first"
        )
    return Cluster(
        leaves=gpus // per_leaf,
        spines=point["spines"],
        servers_per_leaf=per_leaf // per_server,
        gpus_per_server=per_server,
        links_per_pair=per_leaf // point["spines"],
        ocs=True,
    )


def _tenants(point: Point) -> list[Tenant]:
    trace = Path(point["trace"]) if "trace" in point else None
    sample = sized(point["sizes"], point["limit"] or point.get("tenants", 0), trace, point["seed"])
    if trace is not None and sample.gpus.max() > point["gpus"]:
        raise BadInput(f"{trace}: a job has {sample.gpus.max()} GPUs, and the cluster {point['gpus']}")
    sample = replace(sample, gpus=np.minimum(sample.gpus, point["gpus"]))
    split = point["sizes"] == "testbed"
    jobs = tenants(
        sample, point.get("gap_s", 0.0), point.get("duration_s", 0.0), seed=point["seed"], split=split
    )
    if "communication" in point:
        jobs = [replace(job, share=point["communication"] / 100) for job in jobs]
    return jobs


def run_cluster(point: Point) -> Result:
    """Run a queue of jobs onto a cluster."""
    strategy = strategies()[point["policy"]]
    network = ClusterNetwork(
        strategy.cluster(cluster_of(point)),
        rate=point["nic_gbps"] * GBIT,
        server_rate=point["server_gbps"] * GBIT,
    )
    jobs = _tenants(point)
    tenancy = Tenancy(
        jobs, strategy, network, order=point["order"], rounds=point["rounds"], seed=point["seed"]
    )
    moved = transport(strategy, network, point["sharing"], jobs)
    outcome = Simulation(tenancy.jobs(), moved, admission=tenancy, keep_coflows=False).run()
    start = np.array([record.start for record in outcome.jobs])
    finish = np.array([record.finish for record in outcome.jobs])
    arrival = np.array([job.arrival_s for job in jobs])
    alone = np.array([job.duration_s for job in jobs])
    jrt, jwt, jct = finish - start, start - arrival, finish - arrival
    gpus = np.array([len(tenancy.started_as[i].placement.gpus) for i in range(len(jobs))])
    failed = tenancy.queue.failed_attempts
    figures = ClusterTimes(
        total_jct_s=float(jct.sum()),
        mean_jct_s=float(jct.mean()),
        p99_jct_s=float(np.percentile(jct, 99)),
        max_jct_s=float(jct.max()),
        mean_jrt_s=float(jrt.mean()),
        p99_jrt_s=float(np.percentile(jrt, 99)),
        mean_jwt_s=float(jwt.mean()),
        p99_jwt_s=float(np.percentile(jwt, 99)),
        mean_slowdown=float((jrt / alone).mean()),
        p99_slowdown=float(np.percentile(jrt / alone, 99)),
        max_slowdown=float((jrt / alone).max()),
        lower_bound_s=float(alone.sum()),
        stability_s=by_size(jobs, jct),
        stability_jrt_s=by_size(jobs, jrt),
        fragmentation_gpu=failed["gpus"],
        fragmentation_network=failed["network"],
        offered_load=offered_load(jobs, point["gpus"]),
        busy=float((jrt * gpus).sum() / (finish.max() * point["gpus"])),
        shared=tenancy.shared,
        circuits_changed=sum(each.changed for each in tenancy.started_as.values()),
        events=outcome.events,
    )
    return Result(
        figures,
        tuple(
            JobTimes(job.ident, job.arrival_s, float(t), float(w), job.duration_s)
            for job, t, w in zip(jobs, jct, jwt, strict=True)
        ),
    )


def _cluster(base: Point, policy: str, **changed: object) -> Point:
    """A point: CLUSTER512 of the paper with what is `changed`."""
    return {
        **base,
        "gpus": 512,
        "gpus_per_leaf": 32,
        "gpus_per_server": 8,
        "spines": 8,
        "nic_gbps": 100,
        "server_gbps": 1000,
        "sizes": "helios",
        "tenants": 5000,
        "duration_s": MEAN_DURATION_S,
        "gap_s": 120,
        "order": "fifo",
        "sharing": "max-min",
        "rounds": 12,
        "policy": policy,
        **changed,
    }


def _strategies_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p) for p in policies]


def _large_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, gpus=2048, spines=32, gap_s=30) for p in policies]


def _load_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, gap_s=gap) for gap in (100, 110, 120, 130, 140) for p in policies]


def _order_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, order=o) for o in ("fifo", "edf", "fewest-gpus") for p in policies]


def _communication_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, communication=c) for c in (5, 10, 20, 40, 60) for p in policies]


def _tpu_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, sizes="tpu", gap_s=2400, duration_s=3856, tenants=500) for p in policies]


def _shape_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    return [_cluster(base, p, gpus_per_server=t, spines=s) for t in (4, 8) for s in (32, 8) for p in policies]


def _size_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Gaps are such that the loads are about the same."""
    mixes = (("helios", 120), ("powers", 39))
    return [_cluster(base, p, sizes=sizes, gap_s=gap) for sizes, gap in mixes for p in policies]


def _share_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """With the communication that jobs have, and with more, so that they meet more often."""
    return [
        _cluster(base, p, **more, sharing=s)
        for more in ({}, {"communication": 40})
        for s in ("max-min", "equal")
        for p in policies
    ]


def _testbed_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    testbed = {"gpus": 32, "gpus_per_leaf": 8, "gpus_per_server": 4, "spines": 4, "sizes": "testbed"}
    return [
        _cluster(base, p, **testbed, tenants=100, duration_s=74.72, gap_s=22, rounds=60) for p in policies
    ]


def run_hash(point: Point) -> Result:
    """Let each GPU send one flow and receive one, at random, and count how many flows share the most used
    link of each flow's way. Source: vClos, 3.1."""
    network = ClusterNetwork(cluster_of(point))
    c = network.cluster
    random = np.random.default_rng(point["seed"])
    draws = point["limit"] or max(1, 200_000 // c.gpus)
    count = np.zeros(c.gpus_per_leaf + 1, np.int64)
    for draw in range(draws):
        src, dst = np.arange(c.gpus), random.permutation(c.gpus)
        across = network.leaf(src) != network.leaf(dst)
        src, dst = src[across], dst[across]
        by_hash = point["policy"] == "ecmp"
        port = network.hashed(src, dst, point["seed"], draw) if by_hash else src % c.gpus_per_leaf % c.uplinks
        links = network.over(src, dst, port)
        flows = np.bincount(links.reshape(-1))
        count += np.bincount(flows[links].max(axis=1), minlength=len(count))
    share = count / count.sum()
    figures = Collisions(
        flows=(*map(float, share[1:9]), float(share[9:].sum())),
        mean_flows=float((np.arange(len(share)) * share).sum()),
        draws=draws,
    )
    return Result(figures)


def _hash_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    sizes = ((64, 8), (512, 32), (2048, 32), (8192, 64))
    return [
        {**base, "gpus": g, "gpus_per_leaf": n, "gpus_per_server": 8, "spines": n, "policy": p}
        for g, n in sizes
        for p in policies
    ]


def _of_cluster(
    name: str,
    title: str,
    policies: tuple[str, ...],
    points: Callable[[Point, tuple[str, ...]], list[Point]],
    trace: PublicTrace | None = REQUESTS,
) -> Experiment:
    """Return an experiment that runs a queue of jobs at each point."""

    def of_trace(base: Point, policies: tuple[str, ...]) -> list[Point]:
        scaled = base.pop("scaled", False)
        made = points(base, policies)
        if "trace" not in base:
            return made
        if scaled:
            return [{**point, "sizes": SCALED} for point in made]
        if len({point["gap_s"] for point in made}) > 1:
            raise BadInput(f"{name} varies the time between arrivals, which a trace has: give --scale-trace")
        left_out = ("gap_s", "duration_s", "tenants")
        return [{**{k: v for k, v in p.items() if k not in left_out}, "sizes": TRACE} for p in made]

    return Experiment(
        name,
        title,
        trace,
        policies,
        of_trace,
        run_cluster,
        accepts=strategies,
        sends_flows=False,
        scales_traces=True,
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    _of_cluster(
        "vclos-512",
        "vClos, figures 12 and 13 (a): strategies on 512 GPUs",
        ALL_SET,
        _strategies_points,
    ),
    _of_cluster(
        "vclos-2048",
        "vClos, figure 13 (b): strategies on 2,048 GPUs",
        ALL_SET,
        _large_points,
    ),
    _of_cluster(
        "vclos-load",
        "vClos, tables 2 and 5: time between arrivals",
        LOAD_SET,
        _load_points,
    ),
    _of_cluster(
        "vclos-order",
        "vClos, table 6: order of the queue",
        PAPER_SET,
        _order_points,
    ),
    _of_cluster(
        "vclos-communication",
        "vClos: share of communication in a job's time",
        ("best", "ocs-vclos", "vclos", "source", *RIVALS, "balanced-ecmp", "ecmp"),
        _communication_points,
    ),
    _of_cluster(
        "vclos-tpu",
        "vClos, table 7: large jobs, sizes of TPU v4 slices",
        (*PAPER_SET[:4], "least-loaded", "crux-ecmp", *PAPER_SET[4:]),
        _tpu_points,
        trace=None,
    ),
    _of_cluster(
        "vclos-shape",
        "vClos: GPUs per server, and spines",
        ("best", "ocs-vclos", "vclos", "source"),
        _shape_points,
    ),
    _of_cluster(
        "vclos-sizes",
        "vClos: any multiples of a server, and powers of two",
        ALL_SET,
        _size_points,
        trace=None,
    ),
    _of_cluster(
        "vclos-share",
        "vClos: what a flow gets of a link that others use",
        ("source", "least-loaded", "balanced-ecmp", "ecmp"),
        _share_points,
    ),
    _of_cluster(
        "vclos-testbed",
        "vClos, table 4: 100 jobs on the testbed's 32 GPUs",
        ("best", "ocs-vclos", "vclos", "source", "least-loaded", "crux-ecmp", "recmp", "ecmp"),
        _testbed_points,
        trace=None,
    ),
    Experiment(
        "vclos-hash",
        "vClos, figure 2: flows that share a link by hash collision",
        None,
        ("ecmp", "source"),
        _hash_points,
        run_hash,
        sends_flows=False,
    ),
)
