"""How long vClos and OCS-vClos take to place a job, and whether their search misses placements.

The states are those of a run with a backfilling queue. Jobs of Helios-like sizes arrive so fast that 90 % of
the GPUs would be in use if no job waited. Timed are the attempts with enough free GPUs, but not enough in any
one leaf, whether or not a virtual Clos is found. All other attempts are faster. Times are wall-clock times.

`search_equals_exact` is the share of random states, of both kinds, in which the search finds a placement if
and only if HiGHS finds one, in the same stage and shape.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from schedulers.placement.cluster import Cluster, Placement, Port, Request, State, empty
from schedulers.placement.queue import Job, run
from schedulers.placement.stages import Cause
from schedulers.placement.strategies import STRATEGIES, Place

CLUSTERS = {
    2048: Cluster(leaves=64, spines=32, servers_per_leaf=4, gpus_per_server=8, ocs=True),
    65536: Cluster(leaves=512, spines=128, servers_per_leaf=16, gpus_per_server=8, ocs=True),
}
"""Clusters by number of GPUs. The paper's has 64-port switches; the large one has switches of 256 and 512
ports."""

KINDS = {"vclos": "vclos", "ocs": "ocs-vclos"}

SIZES = {
    1: 0.5,
    2: 0.08,
    4: 0.08,
    8: 0.16,
    16: 0.07,
    24: 0.01,
    32: 0.05,
    40: 0.01,
    64: 0.02,
    128: 0.01,
    256: 0.01,
}
"""Job sizes in GPUs, and their frequencies. Sizes in Helios are mostly powers of two; half of the jobs have
one GPU."""

PATTERNS = ("ring", "hierarchical-ring", "halving-doubling", "all-to-all", "pipeline")


class Timed:
    """Time each search for a virtual Clos, and record the share of GPUs in use."""

    def __init__(self, places: Place) -> None:
        self.milliseconds: list[float] = []
        self.busy: list[float] = []
        self._places = places

    def __call__(
        self, state: State, request: Request, *, locality: bool = True, solver: bool = False
    ) -> Placement | Cause:
        begin = time.perf_counter()
        placement = self._places(state, request, locality=locality, solver=solver)
        spent = time.perf_counter() - begin
        if placement == "network" or (isinstance(placement, Placement) and placement.stage > 1):
            self.milliseconds.append(1e3 * spent)
            self.busy.append(1.0 - float(state.gpus.mean()))
        return placement


def jobs_at(cluster: Cluster, load: float, count: int, seed: int) -> list[Job]:
    """Return jobs with Poisson arrivals, at a rate that would keep `load` of the GPUs in use if no job
    waited."""
    random = np.random.default_rng(seed)
    largest = cluster.gpus // 8
    sizes = random.choice(list(SIZES), count, p=list(SIZES.values()))
    sizes = np.minimum(sizes * max(1, cluster.gpus // 2048) ** (sizes > 8), largest)
    durations = random.exponential(3600.0, count)
    mean_gpu_seconds = float((sizes * durations).mean())
    arrivals = np.cumsum(random.exponential(mean_gpu_seconds / (load * cluster.gpus), count))
    patterns = random.choice(PATTERNS, count)
    return [
        Job(Request(f"j{n}", int(size), str(pattern)), float(arrival), float(duration))
        for n, (size, arrival, duration, pattern) in enumerate(
            zip(sizes, arrivals, durations, patterns, strict=True)
        )
    ]


def timed_run(gpus: int, kind: str, count: int, seed: int) -> Timed:
    """Time the attempts in a run of `count` jobs at 90 % load."""
    strategy = STRATEGIES[KINDS[kind]]
    cluster = CLUSTERS[gpus]
    jobs = jobs_at(cluster, 0.9, count, seed)
    run(jobs[: count // 10], empty(cluster), strategy)  # compiles and fills the caches of shapes
    timed = Timed(strategy.places)
    run(jobs, empty(cluster), replace(strategy, places=timed), backfill=True)
    return timed


def random_state(random: np.random.Generator) -> State:
    """Return a cluster of random dimensions with a random part in use: whole servers, and both ends of
    links."""
    cluster = Cluster(
        leaves=int(random.integers(2, 17)),
        spines=int(random.integers(1, 17)),
        servers_per_leaf=int(random.integers(1, 5)),
        gpus_per_server=int(random.choice([2, 4, 8])),
        links_per_pair=int(random.integers(1, 4)),
        ocs=True,
    )
    c = cluster
    state = empty(c)
    servers = np.flatnonzero(random.random(c.leaves * c.servers_per_leaf) < random.uniform(0, 0.6))
    links = np.argwhere(random.random((c.leaves, c.uplinks)) < random.uniform(0, 0.8)).tolist()
    far = [divmod(int(state.uplink_peer[n, p]), c.spine_ports) for n, p in links]
    ports = [Port("leaf", n, p) for n, p in links] + [Port("spine", m, q) for m, q in far]
    return state.without(gpus=servers * c.gpus_per_server, ports=ports)


def compared(number: int, seed: int) -> tuple[dict[str, bool], int]:
    """Return whether search and integer program agree on random state `number`, for each kind, and how many
    kinds of placement there are beyond one leaf."""
    random = np.random.default_rng((seed, number))
    state = random_state(random)
    c = state.cluster
    gpus = int(random.integers(c.gpus_per_server + 1, max(c.gpus // 2, c.gpus_per_server + 2)))
    request = Request(f"j{number}", gpus, str(random.choice(PATTERNS)))
    equal, found = {}, 0
    for kind, name in KINDS.items():
        searched, solved = (replace(STRATEGIES[name], solver=s).place(state, request) for s in (False, True))
        equal[kind] = _outcome(searched) == _outcome(solved)
        found += isinstance(solved, Placement) and solved.stage > 1
    return equal, found


def agreement(count: int, seed: int) -> dict[str, float]:
    """Return the share of `count` random states in which search and integer program agree, for each kind and
    overall. A state depends on its number and the seed only, so any number of processes finds the same."""
    equal = dict.fromkeys(KINDS, 0)
    found = 0
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=spawned) as pool:
        for one, beyond in pool.map(compared, range(count), [seed] * count, chunksize=100):
            found += beyond
            for kind, same in one.items():
                equal[kind] += same
    return {
        "search_equals_exact": sum(equal.values()) / (2 * count),
        **{f"{kind}_search_equals_exact": share / count for kind, share in equal.items()},
        "beyond_one_leaf": found / (2 * count),
    }


def _outcome(placement: Placement | Cause) -> object:
    return (placement.stage, placement.shape) if isinstance(placement, Placement) else placement


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks placement")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--states", type=int, default=10_000, help="random states (10,000)")
    parser.add_argument("--jobs", type=int, default=3_000, help="jobs of the run at 2,048 GPUs (3,000)")
    parser.add_argument(
        "--large-jobs", type=int, default=1_500, help="jobs of the run at 65,536 GPUs (1,500)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    figures: dict[str, float] = {}
    for gpus, count in ((2048, options.jobs), (65536, options.large_jobs)):
        for kind in KINDS:
            timed = timed_run(gpus, kind, count, options.seed)
            spent = timed.milliseconds
            figures[f"{kind}_{gpus}_p99_ms"] = float(np.percentile(spent, 99))
            figures[f"{kind}_{gpus}_mean_ms"] = float(np.mean(spent))
            figures[f"{kind}_{gpus}_max_ms"] = max(spent)
            figures[f"{kind}_{gpus}_attempts"] = len(spent)
            figures[f"{kind}_{gpus}_busy_mean"] = float(np.mean(timed.busy))
    figures |= agreement(options.states, options.seed)
    figures["states"] = options.states
    figures["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:.4f}")
