"""Compute our values for the papers' claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

import numpy as np

from entrain.experiment import Experiment
from entrain.paper import BEST_TCP, Measure, Paper
from entrain.policies import is_baseline, mltcp
from entrain.results.cluster import Stay
from entrain.results.gains import gains
from entrain.results.remedies import cell
from entrain.results.values import (
    JobResult,
    RunResult,
    Settled,
    Summarized,
    converged_at,
    lost_or_marked,
    marks_shifted,
    over_ideal_shifted,
    settled_mean,
    settled_run,
    shifted_means,
    strategy,
    summarized,
)
from entrain.trials.slot_rates import TrialResult
from machine.interval import relative

SERVERS = 6
"""Number of servers in the flow-scheduling paper's testbed."""


@dataclass(frozen=True)
class Live:
    """The measurements of one experiment."""

    name: str
    papers: tuple[Paper, ...]
    runs: Mapping[str, Sequence[RunResult]] = field(default_factory=dict)
    """The runs of all seeds, by scheduler (`values.scheduler`); on a cluster, by strategy."""
    trials: Sequence[TrialResult] = ()
    """The trials of an experiment of kind slot-rates."""
    experiment: Experiment | None = None
    """The experiment, unless it is of kind slot-rates."""

    def condition(self, figures: Sequence[str]) -> str:
        """Return its condition, which distinguishes it from other experiments of these figures."""
        return next((paper.condition for paper in self.papers if paper.figure in figures), "")

    @property
    def best_tcp(self) -> str | None:
        """The plain TCP congestion control with the shortest mean completion time."""
        plain = [name for name, runs in self.runs.items() if is_baseline(runs[0].combination.policy)]
        return min(plain, key=lambda name: fmean(self.jct_s(name)), default=None)

    def jobs(self, name: str, model: str = "") -> list[JobResult]:
        """Return the jobs under scheduler `name` whose names begin with `model`."""
        return [job for run in self.runs[name] for job in run.jobs if job.name.startswith(model)]

    def jct_s(self, name: str) -> list[float]:
        """Return the completion times of all jobs."""
        return [time for run in self.runs[name] for time in run.completion.jct_s]

    def mean_jct_s(self, name: str) -> dict[int, float]:
        """Return the mean completion time of each run's jobs, by seed."""
        return {run.combination.seed: run.completion.mean for run in self.runs[name]}

    def stays(self, name: str) -> list[Stay]:
        """Return the stays of all jobs on a cluster under strategy `name`."""
        return [stay for run in self.runs[name] if run.stays for stay in run.stays.stays]

    def iteration_ms(self, name: str, model: str = "") -> float:
        """Return the mean over the jobs of their mean iteration times."""
        return fmean(self.iteration_ms_by_seed(name, model).values())

    def iteration_ms_by_seed(self, name: str, model: str = "") -> dict[int, float]:
        """Return the same for each seed."""
        return {
            run.combination.seed: fmean(job.mean_ms for job in run.jobs if job.name.startswith(model))
            for run in self.runs[name]
        }

    def settled(self, name: str) -> Settled | None:
        """Return the settled figures over all seeds."""
        return settled_mean(map(settled_run, self.runs[name]))

    def converged_at(self, name: str) -> float | None:
        """Return the median of the iterations at which the converged runs converged."""
        found = [at for at in map(converged_at, self.runs[name]) if at is not None]
        return median(found) if found else None

    def converged(self, name: str) -> int:
        """Return how many runs converged."""
        return sum(each is not None for each in Summarized(tuple(self.runs[name])).converged_at)

    def is_mltcp(self, name: str) -> bool:
        """Return whether the runs under `name` used MLTCP."""
        return self.runs[name][0].combination.policy == mltcp.NAME

    def plain_of(self, name: str) -> str | None:
        """Return the plain control of the MLTCP variant `name`, or None if it is none or was run alone."""
        plain = name.removeprefix("mltcp_")
        return plain if self.is_mltcp(name) and plain in self.runs else None

    def lost_or_marked(self, name: str) -> float | None:
        """Return the segments lost or marked in an iteration, or None if a run has no samples."""
        found = [each for each in map(lost_or_marked, self.runs[name]) if each is not None]
        return fmean(found) if len(found) == len(self.runs[name]) else None

    def fewer_losses(self, name: str) -> float | None:
        """Return the segments lost or marked under the plain control over those under MLTCP variant `name`.

        None if one of the two was not measured.
        """
        plain = self.plain_of(name)
        if plain is None:
            return None
        ours, theirs = self.lost_or_marked(name), self.lost_or_marked(plain)
        if ours is None or theirs is None:
            return None
        return theirs / ours if ours else float("inf")

    def speed_up(self, name: str) -> tuple[float, float] | None:
        """Return the settled iteration times of the plain control over those of its MLTCP variant `name`.

        Mean and 99th percentile. None if one of the two was not measured, or not for long enough.
        """
        plain = self.plain_of(name)
        if plain is None:
            return None
        ours, theirs = self.settled(name), self.settled(plain)
        if ours is None or theirs is None:
            return None
        mean = theirs.iteration_ms_mean / ours.iteration_ms_mean
        return mean, theirs.iteration_ms_p99 / ours.iteration_ms_p99

    def shifted(self) -> list[tuple[str, str]]:
        """Return the congestion controls that were run without Cassini and with it: both names of each."""
        both = ((name, f"cassini {name}") for name in self.runs)  # as `Cassini.series` names them
        return [(plain, shifted) for plain, shifted in both if shifted in self.runs]

    def communication_ms(self, name: str) -> dict[str, float]:
        """Return each job's mean communication time; once shifted, if it was."""
        found: dict[str, list[float]] = {}
        for run in self.runs[name]:
            means = {job.name: fmean(job.summary.communication_ms) for job in run.jobs}
            for job, mean in (means | shifted_means(run, lambda each: each.communication_ms)).items():
                found.setdefault(job, []).append(mean)
        return {job: fmean(each) for job, each in found.items()}


Found = Mapping[str, Live]
"""The experiments of a section that have results, by name."""


def percent(share: float, digits: int = 0) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * share:.{digits}f} %"


def span(values: Iterable[float | None], form: Callable[[float], str] = "{:.3g}".format) -> str:
    """Format the range of the known values, or "-" if there is none."""
    known = [value for value in values if value is not None]
    return " to ".join(dict.fromkeys(map(form, (min(known), max(known))))) if known else "-"


def scheduled(found: Found, name: str | None = None) -> Iterator[RunResult]:
    """Yield the runs in which agents scheduled flows: all of them, or those under scheduler `name`."""
    for live in found.values():
        for each, runs in live.runs.items():
            yield from (run for run in runs if run.scheduling and name in (None, each))


def delays_ms(found: Found, percentile: float, kind: str, name: str | None = None) -> list[float]:
    """Return a percentile of the `negotiation` or `decision` delays, for each host that has any."""
    hosts = [host for run in scheduled(found, name) for host in run.scheduling]
    samples = [host.negotiation_ms if kind == "negotiation" else host.decision_ms for host in hosts]
    return [float(np.percentile(each, percentile)) for each in samples if each]


def carriers_mbps(found: Found, hosts: int | None = None, name: str | None = None) -> list[float]:
    """Return the total rate of carriers and feedback in each run, or in each run with `hosts` hosts."""
    rates = []
    for run in scheduled(found, name):
        each = [host.carrier_mbps for host in run.scheduling]
        if hosts in (None, len(each)) and None not in each:
            rates.append(sum(rate for rate in each if rate is not None))
    return rates


def cpu_shares(found: Found, name: str | None = None) -> list[float]:
    """Return the CPU time of every agent that answered, as a fraction of one core."""
    hosts = (host for run in scheduled(found, name) for host in run.scheduling)
    return [host.cpu_share for host in hosts if host.cpu_share is not None]


def claims(found: Found, figures: Sequence[str]) -> list[list[str]]:
    """Return rows of claim, paper's value and our value for `figures`, without claims that were not run."""
    rows: dict[str, list[str]] = {}
    for live in found.values():
        for paper in live.papers:
            if paper.figure in figures and paper.measure is not None:
                against = live.best_tcp or "" if paper.against == BEST_TCP else paper.against
                ours = MEASURES[paper.measure](paper, live, found)
                text = paper.claim.format(condition=paper.condition, against=against)
                if ours is not None:
                    rows.setdefault(text, [text, paper.value, ours])
    return list(rows.values())


def _completion_time(paper: Paper, live: Live, found: Found) -> str | None:
    against = live.best_tcp if paper.against == BEST_TCP else paper.against
    if against is None or not {paper.of, against} <= set(live.runs):
        return None
    return relative(live.mean_jct_s(against), live.mean_jct_s(paper.of)).percent()


def _stay_time(key: str, paper: Paper, live: Live, found: Found) -> str | None:
    """Compare the means of `jrt_s` or `jwt_s` under two strategies."""
    if not {paper.of, paper.against} <= set(live.runs):
        return None
    ours, theirs = (
        {
            run.combination.seed: fmean(getattr(stay, key) for stay in run.stays.stays)
            for run in live.runs[name]
            if run.stays
        }
        for name in (paper.of, paper.against)
    )
    return relative(theirs, ours).percent()


def _training_speed(paper: Paper, live: Live, found: Found) -> str | None:
    """Compare inverse iteration times, as a factor if the paper gives one."""
    others = [live]
    if paper.against_condition:
        others = [o for o in found.values() if o.condition([paper.figure]) == paper.against_condition]
    against = live.best_tcp if paper.against == BEST_TCP else paper.against
    if not others or against is None or paper.of not in live.runs or against not in others[0].runs:
        return None
    ours, theirs = (
        each.iteration_ms_by_seed(name, paper.model)
        for each, name in ((live, paper.of), (others[0], against))
    )
    faster = relative(ours, theirs)
    return faster.factor() if paper.value.startswith("×") else faster.percent()


def _iterations(paper: Paper, live: Live, found: Found) -> str:
    variants = [name for name in live.runs if live.is_mltcp(name)]
    at, converged = span(map(live.converged_at, variants)), sum(map(live.converged, variants))
    return f"{at} (converged: {converged} of {sum(len(live.runs[name]) for name in variants)} runs)"


def _speed_up(place: int, paper: Paper, live: Live, found: Found) -> str:
    """Return the range of speed-ups: of the mean (`place` 0) or of the 99th percentile (1)."""
    ups = [up for name in live.runs if (up := live.speed_up(name))]
    return span((up[place] for up in ups), "{:.2f}".format)


def _fewer_losses(paper: Paper, live: Live, found: Found) -> str:
    return span(map(live.fewer_losses, live.runs), "{:.2f}".format)


def _unfair_gain(paper: Paper, live: Live, found: Found) -> str | None:
    """Return the gains of the jobs of the model."""
    if live.experiment is None:
        return None
    every = gains(live.experiment, [run for runs in live.runs.values() for run in runs])
    return ", ".join(f"{each.gain:.2f}" for each in every if each.job.startswith(paper.model)) or None


def _shifted_over_alone(paper: Paper, live: Live, found: Found) -> str:
    """Return the range of iteration times over those alone under Cassini, once jobs are shifted."""
    return span((over_ideal_shifted(run) for runs in live.runs.values() for run in runs), "{:.3f}".format)


def _shifted_marks(paper: Paper, live: Live, found: Found) -> str | None:
    """Return the marks per iteration without Cassini, and with it once jobs are shifted."""
    cells = []
    for plain, shifted in live.shifted():
        without = [job.summary.marks_per_iteration or 0.0 for job in live.jobs(plain)]
        marks = [each for run in live.runs[shifted] if (each := marks_shifted(run)) is not None]
        if marks:
            cells.append(f"{fmean(without):.0f} and {fmean(marks):.0f}")
    return "; ".join(cells) or None


def _communication_gain(paper: Paper, live: Live, found: Found) -> str | None:
    """Return each job's communication time without Cassini over that with it, by congestion control."""
    cells = []
    for plain, shifted in live.shifted():
        before, after = live.communication_ms(plain), live.communication_ms(shifted)
        cells.append(", ".join(f"{before[job] / after[job]:.2f}" for job in before) + f" ({plain})")
    return "; ".join(cells) or None


def _remedy_gain(paper: Paper, live: Live, found: Found) -> str | None:
    """Return the range of gains in iteration time over all loads and routings."""
    if not {paper.of, paper.against} <= set(live.runs):
        return None
    ours, theirs = (
        {
            (which.load, strategy(which)): cell(group.runs).mean
            for group in summarized(live.runs[name])
            for which in [group.runs[0].combination]
        }
        for name in (paper.of, paper.against)
    )
    return span((theirs[at] / ours[at] for at in ours if at in theirs), "{:.2f}".format)


MEASURES: Mapping[Measure, Callable[[Paper, Live, Found], str | None]] = {
    "completion-time": _completion_time,
    "training-speed": _training_speed,
    "negotiation-p90-ms": lambda paper, live, found: span(delays_ms(found, 90, "negotiation")),
    "carriers-mbps": lambda paper, live, found: span(carriers_mbps(found, SERVERS)),
    "scheduler-cpu": lambda paper, live, found: span(cpu_shares(found), percent),
    "iterations-to-converge": _iterations,
    "mean-speed-up": partial(_speed_up, 0),
    "p99-speed-up": partial(_speed_up, 1),
    "fewer-losses": _fewer_losses,
    "running-time": partial(_stay_time, "jrt_s"),
    "waiting-time": partial(_stay_time, "jwt_s"),
    "unfair-gain": _unfair_gain,
    "shifted-over-alone": _shifted_over_alone,
    "shifted-marks": _shifted_marks,
    "communication-gain": _communication_gain,
    "remedy-gain": _remedy_gain,
}
