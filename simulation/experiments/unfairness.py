"""The experiments cassini-unfairness and cassini-timeline: jobs share a link fairly, or with DCQCN made more
aggressive for one than for the next (Cassini and MLTCP thesis, chapter 3).

`fair`: T = 125 µs for all. `unfair`: 100 µs for the first job, 125 µs for the last, in between by rank. The
score says beforehand which groups can gain: those that score nearly 1 interleave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from schedulers.cassini.affinity import Link, interleave
from schedulers.cassini.profile import Profile, up_down
from simulation.dcqcn import BIN, MODELS, TIMER_S, Run, run
from simulation.experiments.experiment import Experiment, Point
from simulation.results import JobTimes, Result, Timeline, Unfairness
from simulation.topology import GBIT

POLICIES = ("unfair", "fair")
CAPACITY = 42 * GBIT
"""bytes/s: two jobs get 21 Gbit/s each of the thesis' link of 50 Gbit/s (figure 3.1)."""
FAIR_S, AGGRESSIVE_S = TIMER_S, 100e-6
ITERATIONS = 40
SETTLING = 0.25
"""The part of the iterations, from the first on, that the means leave out."""


@dataclass(frozen=True)
class Sharing:
    """A job of a group: its computation (ms), and its communication (ms) at `gbps`."""

    model: str
    compute_ms: float
    send_ms: float
    gbps: float

    @property
    def profile(self) -> Profile:
        """The job alone on the link."""
        return up_down(self.compute_ms / 1e3, self.send_ms / 1e3, self.gbps * GBIT)


GROUPS: dict[str, tuple[Sharing, ...]] = {
    "vgg19 vgg19": (Sharing("VGG19 (1400)", 161, 168, 27.4), Sharing("VGG19 (1400)", 161, 168, 27.4)),
    "bert vgg19": (
        Sharing("BERT (8)", 67, 90, 42),
        Sharing("VGG19 (1200)", 138, 168, 27.4),
    ),
    "dlrm dlrm": (
        Sharing("DLRM (2000)", 701, 300, 42),
        Sharing("DLRM (2000)", 701, 300, 42),
    ),
    "bert vgg19 wideresnet101": (
        Sharing("BERT (8)", 67, 90, 42),
        Sharing("VGG19 (1400)", 161, 168, 27.4),
        Sharing("WideResNet101 (800)", 135, 138, 14.8),
    ),
    "wideresnet101 vgg16": (
        Sharing("WideResNet101 (800)", 136, 138, 14.8),
        Sharing("VGG16 (1400)", 126, 148, 29.9),
    ),
    "vgg19 vgg16 resnet50": (
        Sharing("VGG19 (1400)", 161, 168, 27.4),
        Sharing("VGG16 (1700)", 166, 163, 27.2),
        Sharing("ResNet50 (1600)", 105.5, 59, 13.9),
    ),
}
"""Figure 3.1's pair, and the groups of table 3.1.

Periods are the iteration times of compatible groups in table 3.1, and communication times those of table 4.3
without contention. Each job has two workers, which send the model once (table 4.2); this gives its rate.
BERT's and DLRM's communication is not known: BERT sends its 450 MiB at the link's rate, in 90 of the 157 ms
of an iteration beside a job that is less aggressive. DLRM's iterations are 300 ms longer when two jobs always
meet, so they send for 300 ms at the link's rate. VGG19's computation is in proportion to the batch.
"""


TIMELINE_GROUP = "vgg19 vgg19"
TIMELINE_ITERATIONS = 200
TIMELINE_MS = 2800
"""How long rates are drawn: eight iterations without contention."""
FIRST_MS = 50
"""Rates in the first iteration are means over this time, from when all jobs communicate."""
SETTLED = 1.05
"""Iterations within this factor of the job's time alone count as settled."""


def timers(jobs: int, policy: str) -> list[float]:
    """Return the jobs' periods of rate increase, s."""
    if policy == "fair":
        return [FAIR_S] * jobs
    step = (FAIR_S - AGGRESSIVE_S) / max(jobs - 1, 1)
    return [AGGRESSIVE_S + step * rank for rank in range(jobs)]


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the points to run: one for each group, model and policy. The point's limit is the number of
    iterations."""
    return [
        {**base, "policy": policy, "model": model, "group": group}
        for group in GROUPS
        for model in MODELS
        for policy in policies
    ]


def run_point(point: Point) -> Result:
    """Run one point. Iteration times are means per job without the first quarter; `score` is what Cassini
    says of the group. `settled_after` counts the iterations before all jobs stay within 5 % of their
    time alone (None: they do not)."""
    group = GROUPS[point["group"]]
    profiles = [job.profile for job in group]
    count = point["limit"] or ITERATIONS
    began = math.ceil(max(job.compute_ms for job in group))
    done = run(
        profiles,
        timers(len(group), point["policy"]),
        CAPACITY,
        count,
        point["model"],
        seed=point["seed"],
        bins=max(began + FIRST_MS, point.get("timeline_ms", 0)),
    )
    late = [
        i
        for times, profile in zip(done.times, profiles, strict=True)
        for i in np.flatnonzero(times > SETTLED * profile.period).tolist()
    ]
    settled_after = max(late) + 1 if late else 0
    settled = done.times[:, int(SETTLING * count) :]
    names = [f"j{n}" for n in range(len(group))]
    found = interleave(dict(zip(names, profiles, strict=True)), [Link("link", CAPACITY, tuple(names))])
    means = settled.mean(axis=1)
    return Result(
        Unfairness(
            score=found.score,
            mean_iteration_s=float(settled.mean()),
            p99_iteration_s=float(np.percentile(settled, 99)),
            max_iteration_s=float(settled.max()),
            iterations_s=tuple(round(mean, 6) for mean in means.tolist()),
            settled_after=settled_after if settled_after < count else None,
            first_gbit_s=tuple(
                (done.rates[:, began : began + FIRST_MS].mean(axis=1) * 8e-9).round(2).tolist()
            ),
            to_alone=tuple(m / p.period for m, p in zip(means.tolist(), profiles, strict=True)),
            marks_per_iteration=float(done.marked.sum() / count / len(group)),
        ),
        tuple(
            JobTimes(f"{n} {job.model}", 0.0, math.fsum(times), 0.0, count * job.profile.period)
            for n, (job, times) in enumerate(zip(group, done.times.tolist(), strict=True))
        ),
        timeline=_timeline(done, point["timeline_ms"]) if "timeline_ms" in point else None,
    )


def timeline_points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the points of cassini-timeline: one for each model and policy."""
    limit = base["limit"] or TIMELINE_ITERATIONS
    common = {**base, "limit": limit, "group": TIMELINE_GROUP, "timeline_ms": TIMELINE_MS}
    return [{**common, "policy": policy, "model": model} for model in MODELS for policy in policies]


def _timeline(done: Run, milliseconds: int) -> Timeline:
    """Return the rates of the first milliseconds and all iterations."""
    rates = done.rates[:, :milliseconds] * 8e-9
    return Timeline(BIN, tuple(map(tuple, rates.round(3).tolist())), tuple(map(tuple, done.times.tolist())))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "cassini-unfairness",
        "Cassini: iteration times when DCQCN shares a link unfairly (chapter 3)",
        None,
        POLICIES,
        points,
        run_point,
        sends_flows=False,
    ),
    Experiment(
        "cassini-timeline",
        "Cassini: do jobs that share a link unfairly move apart? (figures 3.1 and 3.2)",
        None,
        ("fair", "unfair"),
        timeline_points,
        run_point,
        sends_flows=False,
    ),
)
