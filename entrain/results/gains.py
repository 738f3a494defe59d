"""Which jobs gain when links are shared unfairly, and the score that says so beforehand (table 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from entrain.bound import profile_of
from entrain.experiment import Experiment
from entrain.policies import is_baseline
from entrain.policies.unfair import NAME as UNFAIR
from entrain.results.values import RunResult
from entrain.shared_links import shared_links, slowest_mbps
from schedulers.cassini.affinity import interleave
from workloads.collectives import DDP
from workloads.connections import flows_of

MEETING = 0.25
"""The part of the iterations, from the first on, that the means leave out: jobs need time to drift apart."""


@dataclass(frozen=True)
class Gain:
    """A job's mean iteration times (ms) when links are shared fairly and unfairly, and the score of the worst
    link that it shares; None where its profile is not known."""

    job: str
    score: float | None
    fair_ms: float
    unfair_ms: float

    @property
    def gain(self) -> float:
        """How many times as fast the job is if sharing is unfair."""
        return self.fair_ms / self.unfair_ms

    def cells(self) -> list[str]:
        """Return a row of a table: job, score, times and gain."""
        score = "-" if self.score is None else f"{self.score:.2f}"
        return [self.job, score, f"{self.fair_ms:.1f}", f"{self.unfair_ms:.1f}", f"{self.gain:.2f}"]


def gains(experiment: Experiment, runs: Sequence[RunResult]) -> list[Gain]:
    """Return each job's gain over all seeds, by the first load and congestion control; empty unless runs of
    policies `none` and `unfair` are there."""
    fair = [run for run in runs if is_baseline(run.combination.policy)]
    unfair = [run for run in runs if run.combination.policy == UNFAIR]
    if not fair or not unfair:
        return []
    score = scores(experiment.at(fair[0].combination.load), fair[0].combination.seed)
    fair, unfair = _alike(fair), _alike(unfair)
    return [
        Gain(
            job.name,
            score.get(job.name),
            _mean_ms(fair, job.name),
            _mean_ms(unfair, job.name),
        )
        for job in experiment.jobs
    ]


def scores(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the least score of the links that each job shares with others, by definition of the jobs: each
    sends as fast as the slowest link on its way. 1 where it shares none. Jobs that train are left out."""
    own = [job for job in experiment.jobs if job.spec.collective != DDP]
    jobs = [job.spec.model_copy(update={"seed": seed}) for job in own]
    links = shared_links(
        experiment.topology, experiment.routing[0], {spec.name: flows_of(spec) for spec in jobs}
    )
    profiles = {}
    for job in own:
        slowest = slowest_mbps(links, job.name)
        profiles[job.name] = profile_of(
            job.spec, [min(slowest, r) for r in experiment.rates_mbps(job)], mtu=experiment.topology.mtu
        )
    found = interleave(profiles, links).links
    return {
        name: min((each.score for each in found if name in each.link.jobs), default=1.0) for name in profiles
    }


def _alike(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs that differ from the first one by their seed alone."""
    first = replace(runs[0].combination, seed=0)
    return [run for run in runs if replace(run.combination, seed=0) == first]


def _mean_ms(runs: Sequence[RunResult], name: str) -> float:
    times = [job.summary.iteration_ms for run in runs for job in run.jobs if job.name == name]
    return fmean(fmean(each[int(MEETING * len(each)) :]) for each in times)
