"""How long Cassini takes to fit jobs to a link, and to choose among placements.

Jobs have random profiles: periods of 100 to 400 ms in steps of 5 ms, an Up phase of 20 to 60 % of the period,
and every third one a second phase; demands of half of the link to all of it. The circle has 72 samples per
iteration of the fastest job. The module chooses among 10 placements of 100 jobs: half of the jobs are within
a rack, two of five span two of 48 racks, the others three. Times are those that the thread spent on its
processor, so that other programs do not count, after the kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence

import numpy as np

from schedulers.cassini.affinity import Link
from schedulers.cassini.circle import common_multiple
from schedulers.cassini.fit import best
from schedulers.cassini.module import choose
from schedulers.cassini.profile import Profile, of_ups

CAPACITY = 6.25e9
"""50 Gbit/s, in bytes/s."""
RACKS = 48


def random_profile(random: np.random.Generator) -> Profile:
    """Return a job with one or two Up phases."""
    period = 0.005 * int(random.integers(20, 81))
    up = period * random.uniform(0.2, 0.6)
    rate = CAPACITY * random.uniform(0.5, 1.0)
    if random.random() < 1.0 / 3.0:
        return of_ups(period, [(0.0, 0.3 * up, rate), (0.5 * period, 0.5 * period + 0.7 * up, rate)])
    return of_ups(period, [(period - up, period, rate)])


def fits(jobs: int, count: int, random: np.random.Generator) -> list[float]:
    """Return the times of `count` fits of `jobs` random jobs to a link, ms."""
    times = []
    for number in range(count + 1):
        given = [random_profile(random) for _ in range(jobs)]
        begin = time.thread_time()
        common = common_multiple([profile.period for profile in given])
        waiting = [p.waiting(t) for p, t in zip(given, common.periods.tolist(), strict=True)]
        best(waiting, common.perimeter, CAPACITY)
        if number:  # the first one compiles
            times.append(1e3 * (time.thread_time() - begin))
    return times


def placement(random: np.random.Generator, jobs: int) -> list[Link]:
    """Return the up- and downlinks of racks that jobs cross, each with its jobs."""
    crossing: list[list[str]] = [[] for _ in range(RACKS)]
    for number in range(jobs):
        racks = random.choice([1, 2, 3], p=[0.5, 0.4, 0.1])
        if racks > 1:
            for rack in random.choice(RACKS, racks, replace=False):
                crossing[rack].append(f"j{number}")
    return [
        Link(f"{direction}{rack}", CAPACITY, tuple(names))
        for rack, names in enumerate(crossing)
        if names
        for direction in ("up", "down")
    ]


def choices(jobs: int, count: int, random: np.random.Generator) -> dict[str, float]:
    """Return the figures of `count` choices among 10 placements of `jobs` jobs."""
    times, scores, looped, shared = [], [], 0, 0
    for number in range(count + 1):
        profiles = {f"j{n}": random_profile(random) for n in range(jobs)}
        candidates = [placement(random, jobs) for _ in range(10)]
        begin = time.thread_time()
        choice = choose(candidates, profiles)
        spent = 1e3 * (time.thread_time() - begin)
        if number:  # the first one compiles
            times.append(spent)
            scores.append(choice.interleaving.score)
            looped += bool(choice.interleaving.loops)
            shared += sum(len(link.jobs) > 1 for links in candidates for link in links)
    return {
        "module_100_jobs_p99_ms": float(np.percentile(times, 99)),
        "module_100_jobs_mean_ms": float(np.mean(times)),
        "module_score_mean": float(np.mean(scores)),
        "module_chosen_with_loops": looped / count,
        "module_shared_links": shared / count / 10,
    }


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cassini")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fits", type=int, default=2000, help="fits of two and of six jobs (2,000)")
    parser.add_argument("--choices", type=int, default=20, help="choices of the module (20)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    random = np.random.default_rng(options.seed)
    figures: dict[str, float] = {}
    for name, jobs in (("two_jobs", 2), ("three_jobs", 3), ("six_jobs", 6), ("twelve_jobs", 12)):
        spent = fits(jobs, options.fits if jobs in (2, 6) else max(options.fits // 10, 1), random)
        figures[f"{name}_p99_ms"] = float(np.percentile(spent, 99))
        figures[f"{name}_mean_ms"] = float(np.mean(spent))
    figures |= choices(100, options.choices, random)
    figures["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:.4f}")
