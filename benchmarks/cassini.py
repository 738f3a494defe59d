"""How long Cassini takes to fit jobs to a link, and to choose among placements.

Jobs have random profiles: periods of 100 to 400 ms in steps of 5 ms, an Up phase of 20 to 60 % of the period,
and every third one a second phase; demands of half of the link to all of it. The circle has 72 samples per
iteration of the fastest job. The module chooses among 10 placements of 100 jobs on 24 racks of 16 hosts: jobs
of 2 or 3 hosts, each in as few racks as it finds. Times are those that the thread spent on its processor, so
that other programs do not count, after the kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from schedulers.cassini.affinity import Link
from schedulers.cassini.circle import common_multiple
from schedulers.cassini.fit import best
from schedulers.cassini.module import choose
from schedulers.cassini.profile import Profile, of_ups

CAPACITY = 6.25e9
"""50 Gbit/s, in bytes/s."""
RACKS, HOSTS = 24, 16


def random_profile(random: np.random.Generator) -> Profile:
    """Return a job with one or two Up phases."""
    period = 0.005 * int(random.integers(20, 81))
    up = period * random.uniform(0.2, 0.6)
    rate = CAPACITY * random.uniform(0.5, 1.0)
    if random.random() < 1.0 / 3.0:
        return of_ups(period, [(0.0, 0.3 * up, rate), (0.5 * period, 0.5 * period + 0.7 * up, rate)])
    return of_ups(period, [(period - up, period, rate)])


def timed(run: Callable[[], object]) -> float:
    """Return how long `run` takes, ms."""
    begin = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - begin)


def fits(jobs: int, count: int, random: np.random.Generator) -> list[float]:
    """Return the times of `count` fits of `jobs` random jobs to a link, ms."""

    def fit(given: list[Profile]) -> None:
        common = common_multiple([profile.period for profile in given])
        waiting = [p.waiting(t) for p, t in zip(given, common.periods.tolist(), strict=True)]
        best(waiting, common.perimeter, CAPACITY)

    drawn = [[random_profile(random) for _ in range(jobs)] for _ in range(count + 1)]
    fit(drawn[0])
    return [timed(lambda given=given: fit(given)) for given in drawn[1:]]  # type: ignore[misc]


def placement(random: np.random.Generator, sizes: Sequence[int]) -> list[Link]:
    """Return the up- and downlinks of racks that jobs of `sizes` hosts cross. A job takes the free hosts of a
    random rack, and those of another one when that is full."""
    free = np.full(RACKS, HOSTS)
    crossing: list[list[str]] = [[] for _ in range(RACKS)]
    for number, size in enumerate(sizes):
        racks = []
        for rack in random.permutation(RACKS):
            taken = min(int(free[rack]), size)
            if taken:
                free[rack] -= taken
                size -= taken
                racks.append(int(rack))
            if not size:
                break
        if len(racks) > 1:
            for rack in racks:
                crossing[rack].append(f"j{number}")
    return [
        Link(f"{direction}{rack}", CAPACITY, tuple(jobs))
        for rack, jobs in enumerate(crossing)
        if jobs
        for direction in ("up", "down")
    ]


def choices(jobs: int, count: int, random: np.random.Generator) -> tuple[list[float], list[int]]:
    """Return the times of `count` choices among 10 placements of `jobs` jobs (ms), and how many of the 10 had
    no loop that was refused."""
    times, sound = [], []
    for number in range(count + 1):
        profiles = {f"j{n}": random_profile(random) for n in range(jobs)}
        sizes = random.integers(2, 4, jobs).tolist()
        candidates = [placement(random, sizes) for _ in range(10)]
        spent = timed(lambda: choose(candidates, profiles))  # noqa: B023
        if number:
            times.append(spent)
            sound.append(len([1 for links in candidates if not choose([links], profiles).interleaving.loops]))
    return times, sound


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cassini")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fits", type=int, default=2000, help="fits of two and of six jobs (2,000)")
    parser.add_argument("--choices", type=int, default=100, help="choices of the module (100)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    random = np.random.default_rng(options.seed)
    figures: dict[str, float] = {}
    for name, jobs in (("two_jobs", 2), ("three_jobs", 3), ("six_jobs", 6), ("twelve_jobs", 12)):
        spent = fits(jobs, options.fits if jobs in (2, 6) else max(options.fits // 10, 1), random)
        figures[f"{name}_p99_ms"] = float(np.percentile(spent, 99))
        figures[f"{name}_mean_ms"] = float(np.mean(spent))
    spent, sound = choices(100, options.choices, random)
    figures["module_100_jobs_p99_ms"] = float(np.percentile(spent, 99))
    figures["module_100_jobs_mean_ms"] = float(np.mean(spent))
    figures["module_candidates_without_loops"] = float(np.mean(sound))
    figures["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:.4f}")
