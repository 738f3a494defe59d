"""The experiment mltcp-two-jobs: two equal jobs share one link, with and without MLTCP.

`fluid` models exact sharing. `reno`, `cubic` and `dctcp` model windows on a link of 1 Gbit/s, over a round
trip of 1 ms and a queue of one bandwidth-delay product; DCTCP marks above 0.3 of it. As on hosts, progress is
learned from acknowledgements. `dcqcn` (a NIC's state machine) and `dcqcn-fluid` are the models of
`simulation.dcqcn`, on a link of 42 Gbit/s; there jobs know their progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from schedulers.cassini.profile import up_down
from schedulers.mltcp import FAIR, Gain, Progress
from simulation import dcqcn
from simulation.experiments.experiment import Experiment, Point
from simulation.experiments.unfairness import CAPACITY
from simulation.mltcp import PeriodicJob, best_period, fluid, summary
from simulation.results import Iterations, JobTimes, Result
from simulation.windows import CONTROLS, Bottleneck, run

POLICIES = ("mltcp", "fair")
RATE = 125e6
"""bytes/s"""
DCQCN: dict[str, dcqcn.Model] = {"dcqcn": "stepwise", "dcqcn-fluid": "fluid"}
MODELS = ("fluid", *CONTROLS, *DCQCN)
RTT_S = 1e-3
PERIOD_S = 0.5
APART = 0.01
"""Delay of the second job after the first, as a fraction of the period."""
ITERATIONS = 50
SETTLED = 1.02
"""An iteration within this factor of the best possible counts as settled."""


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the points to run: one for each sending share (percent of the period), model and policy. The
    point's limit is the number of iterations."""
    return [
        {**base, "policy": policy, "model": model, "sending_percent": percent}
        for percent in (45, 50, 60)
        for model in MODELS
        for policy in policies
    ]


def run_point(point: Point) -> Result:
    """Run one point. Iteration times are over both jobs; `settled_after` counts the iterations before both
    jobs stay within 2 % of the best period (None: they do not)."""
    part = point["sending_percent"] / 100.0
    rate = CAPACITY if point["model"] in DCQCN else RATE
    profile = up_down((1.0 - part) * PERIOD_S, part * PERIOD_S, rate)
    jobs = [PeriodicJob(profile, i * APART * PERIOD_S) for i in range(2)]
    count = point["limit"] or ITERATIONS
    mltcp = point["policy"] == "mltcp"
    lost_or_marked = None
    gain = Gain() if mltcp else FAIR
    times: Sequence[Sequence[float]]
    if point["model"] == "fluid":
        times = fluid(jobs, rate, count, gain)
    elif point["model"] in DCQCN:
        done = dcqcn.run(
            [profile] * 2,
            [dcqcn.TIMER_S] * 2,
            rate,
            count,
            DCQCN[point["model"]],
            gains=[gain] * 2,
            starts=[job.start for job in jobs],
            seed=point["seed"],
        )
        times = done.times.tolist()
        lost_or_marked = float(done.marked.sum() * dcqcn.SEGMENT / done.sent.sum())
    else:
        pipe = rate * RTT_S
        link = Bottleneck(rate, RTT_S, pipe, 0.3 * pipe if point["model"] == "dctcp" else None)
        progress = [Progress() for _ in jobs] if mltcp else None
        outcome = run(jobs, link, count, point["model"], progress, seed=point["seed"])
        times = outcome.times
        lost_or_marked = (outcome.lost + outcome.marked) / outcome.sent
    best = best_period(jobs, rate)
    found = summary([t for each in times for t in each[:count]], best)
    late = [i for i in range(count) if max(each[i] for each in times) > SETTLED * best]
    settled = late[-1] + 1 if late else 0
    return Result(
        Iterations(
            settled_after=settled if settled < count else None,
            mean_iteration_s=found.mean,
            p99_iteration_s=found.p99,
            max_iteration_s=found.maximum,
            best_iteration_s=best,
            mean_to_best=found.ratio,
            lost_or_marked=lost_or_marked,
        ),
        tuple(
            JobTimes(str(i), job.start, math.fsum(each[:count]), 0.0, count * profile.period)
            for i, (job, each) in enumerate(zip(jobs, times, strict=True))
        ),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "mltcp-two-jobs",
        "MLTCP: iteration times of two identical jobs on one link",
        None,
        POLICIES,
        points,
        run_point,
        sends_flows=False,
    ),
)
