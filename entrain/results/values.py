"""The measurements of a run, as values and as `results.json`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import fmean, median
from typing import Any

import numpy as np
from pydantic import JsonValue

from entrain.experiment import Combination, Experiment
from entrain.policies import is_baseline, series
from entrain.policies.reports import HostReport, Learned, Paced
from entrain.results.cluster import Stays, times
from entrain.run.contention import LinkContention
from entrain.run.queues import QueueUse
from entrain.run.samples import Throughput, Window
from machine.interval import Interval, percentile, relative
from machine.origin import Origin
from workloads.records import Summary


@dataclass(frozen=True)
class JobResult:
    """A job in one run."""

    name: str
    hosts: tuple[str, ...]
    summary: Summary
    """Measurements of its ranks."""
    bound_ms: float
    """Iteration time if only its hosts' links limited it."""
    max_flows_per_link: int
    """Largest number of simultaneous flows of one step on one link."""
    alone_ms: float | None = None
    """Measured iteration time alone in the network, same congestion control. None: not measured."""

    @property
    def ideal_ms(self) -> float:
        """Iteration time alone in the network: measured, otherwise computed."""
        return self.bound_ms if self.alone_ms is None else self.alone_ms

    @property
    def mean_ms(self) -> float:
        """Mean iteration time."""
        return sum(self.summary.iteration_ms) / len(self.summary.iteration_ms)

    @property
    def ratio_to_ideal(self) -> float:
        """Mean iteration time over the ideal one."""
        return self.mean_ms / self.ideal_ms


def scheduler(combination: Combination) -> str:
    """Return the name of what schedules a run's flows; it distinguishes MLTCP variants from plain TCP."""
    return series(combination.policy, combination.control)


def strategy(combination: Combination) -> str:
    """Return the name of what places and routes a run's jobs; where their hosts are given, the routing."""
    return combination.strategy or combination.routing


def series_of(experiment: Experiment, combination: Combination) -> str:
    """Return the name of what distinguishes a run from the others of its experiment, but for the seed."""
    if experiment.cluster is None:
        return scheduler(combination)
    if experiment.policy == ("none",) and len(experiment.controls) < 2:
        return strategy(combination)
    several = len(experiment.cluster.table.strategy) > 1
    return f"{strategy(combination)} {scheduler(combination)}" if several else scheduler(combination)


@dataclass(frozen=True)
class Timeline:
    """The samples of a run; empty unless the experiment has `sample_ms`."""

    throughput: tuple[Throughput, ...] = ()
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Completion:
    """Job completion times in s (flow-scheduling paper, figure 8 and table I)."""

    jct_s: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the jobs."""
        return fmean(self.jct_s)

    def document(self) -> dict[str, float | None]:
        """Return the figures as in results.json. p99 is None for fewer than 100 jobs."""
        return {
            "jct_s_mean": self.mean,
            "jct_s_min": min(self.jct_s),
            "jct_s_max": max(self.jct_s),
            "jct_s_p99": percentile(self.jct_s, 99),
        }


@dataclass(frozen=True)
class RunResult:
    """One run of an experiment. `overhead` has the costs of emulation and measurement (see `document`)."""

    combination: Combination
    target: str
    jobs: tuple[JobResult, ...]
    links: tuple[LinkContention, ...]
    overhead: Mapping[str, int | float] = field(default_factory=dict)
    timeline: Timeline = Timeline()
    learned: tuple[Learned, ...] = ()
    scheduling: tuple[HostReport, ...] = ()
    policy_report: Mapping[str, JsonValue] = field(default_factory=dict)
    """Anything else that the policy reports."""
    paced: Paced = field(default_factory=Paced)
    """How jobs were shifted against each other."""
    stays: Stays | None = None
    """How the jobs of a cluster came and went, in the order of `jobs`."""
    origin: Origin | None = None
    """None: measured by a version that did not record it."""
    queues: tuple[QueueUse, ...] = ()
    """By direction of a link; empty: measured by a version that did not read them."""

    @property
    def over_alone(self) -> tuple[float, ...]:
        """Every iteration's time over the same job's time alone; empty where one was not measured alone."""
        if any(job.alone_ms is None for job in self.jobs):
            return ()
        return tuple(time / job.ideal_ms for job in self.jobs for time in job.summary.iteration_ms)

    @property
    def completion(self) -> Completion:
        """Completion times of its jobs; in a cluster, from their arrival."""
        if self.stays is not None:
            return Completion(tuple(stay.jct_s for stay in self.stays.stays))
        return Completion(tuple(job.summary.jct_s or 0.0 for job in self.jobs))

    @property
    def max_flows_per_link(self) -> int:
        """Largest number of simultaneous flows of one job in one step on one link."""
        return max((link.one_job_step for link in self.links), default=0)

    @property
    def max_flows_per_link_any_step(self) -> int:
        """The same over all steps: a rank may be in a step while others are still in the one before."""
        return max((link.one_job for link in self.links), default=0)

    @property
    def max_flows_per_link_all(self) -> int:
        """Largest number of simultaneous flows of all jobs on one link."""
        return max((link.all_jobs for link in self.links), default=0)


LEARNING = 50
"""Number of initial iterations that do not count as settled. MLTCP learns in the first few, and the jobs need
some thirty to move apart (MLTCP, section 5)."""

SETTLED_LEAST = 50
"""A run has settled figures if at least this many iterations follow the learning phase."""

LAST = 50
"""Number of iterations at the end of a run, whether or not they include learning."""

WINDOW = 10
"""Number of consecutive iterations over which convergence takes the mean."""

CONVERGED = 1.05
"""A run has converged if all such means stay below this multiple of ideal until the end."""

HELD = 20
"""A run must stay converged for at least this many iterations: a few may meet the limit by chance."""


@dataclass(frozen=True)
class Settled:
    """Iteration times after the learning phase, of one job or averaged over jobs and runs."""

    iterations: int
    """Number of iterations; of several jobs, the smallest number."""
    iteration_ms_mean: float
    iteration_ms_p99: float
    over_ideal: float
    """Mean iteration time over the ideal."""
    over_bound: float
    """Mean iteration time over the computed bound."""
    over_ideal_p99: float
    """99th percentile of the iteration time over the ideal."""

    @property
    def has_p99(self) -> bool:
        """Whether there are enough iterations for a 99th percentile."""
        return self.iterations >= 100


def settled(job: JobResult) -> Settled | None:
    """Return the settled figures of one job, or None if it has too few iterations."""
    times = job.summary.iteration_ms[LEARNING:]
    if len(times) < SETTLED_LEAST:
        return None
    mean, p99 = fmean(times), float(np.percentile(times, 99))
    return Settled(len(times), mean, p99, mean / job.ideal_ms, mean / job.bound_ms, p99 / job.ideal_ms)


def settled_mean(parts: Iterable[Settled | None]) -> Settled | None:
    """Return the mean over jobs or runs with equal weights, or None if one of them has too few iterations."""
    known: list[Settled] = []
    for part in parts:
        if part is None:
            return None
        known.append(part)
    means = {
        each.name: fmean(getattr(part, each.name) for part in known)
        for each in fields(Settled)
        if each.name != "iterations"
    }
    return Settled(min(part.iterations for part in known), **means)


def settled_run(run: RunResult) -> Settled | None:
    """Return the settled figures of a run, as the mean over its jobs."""
    return settled_mean(map(settled, run.jobs))


def lost_or_marked(run: RunResult) -> float | None:
    """Return the segments that were sent again or met an ECN mark, per iteration after the learning phase.

    It is the sum over the jobs. None without samples (`sample_ms`), or with too few iterations.
    """
    senders: dict[tuple[str, str], list[Window]] = {}
    for window in run.timeline.windows:
        senders.setdefault((window.job, window.host), []).append(window)
    total = 0.0
    for job in run.jobs:
        if settled(job) is None or not any((job.name, host) in senders for host in job.hosts):
            return None
        learned_s = sum(job.summary.iteration_ms[:LEARNING]) / 1e3
        for host in job.hosts:
            windows = senders.get((job.name, host), [])
            if after := [each for each in windows if each.time_s >= windows[0].time_s + learned_s]:
                first, last = after[0], after[-1]
                count = last.retransmitted + last.marked - first.retransmitted - first.marked
                total += count / len(job.summary.iteration_ms[LEARNING:])
    return total


def last_ms(job: JobResult, number: int = LAST) -> float:
    """Return the mean of the job's last `number` iterations, or of all if there are fewer."""
    return fmean(job.summary.iteration_ms[-number:])


def over_ideal_last(run: RunResult, number: int = LAST) -> float:
    """Return the mean over the jobs of their last iterations' time over the ideal."""
    return fmean(last_ms(job, number) / job.ideal_ms for job in run.jobs)


def over_bound_last(run: RunResult) -> float:
    """Return the same over the bound by the hosts' links."""
    return fmean(last_ms(job) / job.bound_ms for job in run.jobs)


@dataclass(frozen=True)
class Fairness:
    """How evenly the jobs of a run progress.

    A job's progress is its ideal iteration time over its mean one; 1 means unhindered.
    """

    slowest: float
    """Progress of the slowest job."""
    fastest: float
    """Progress of the fastest job."""
    jain: float
    """Jain's index of the jobs' progress: 1 is even, 1/n means that only one job progresses."""
    longest_over_ideal: float
    """The longest iteration of any job, over its ideal."""


def fairness(run: RunResult) -> Fairness:
    """Return the fairness among all jobs, over all iterations."""
    progress = [1 / job.ratio_to_ideal for job in run.jobs]
    return Fairness(
        min(progress),
        max(progress),
        sum(progress) ** 2 / (len(progress) * sum(each**2 for each in progress)),
        max(max(job.summary.iteration_ms) / job.ideal_ms for job in run.jobs),
    )


def converged_at(run: RunResult) -> int | None:
    """Return the first iteration from which every window of every job is within 5 % of ideal until the end.

    None if there is none, or if fewer than `HELD` iterations follow.
    """
    shortest = min(len(job.summary.iteration_ms) for job in run.jobs)
    found = None
    for first in range(shortest - WINDOW, -1, -1):
        windows = ((job, job.summary.iteration_ms[first : first + WINDOW]) for job in run.jobs)
        if any(sum(times) / WINDOW > CONVERGED * job.ideal_ms for job, times in windows):
            break
        found = first
    return None if found is None or shortest - found < HELD else found


@dataclass(frozen=True)
class Summarized:
    """Runs that differ only by their seeds."""

    runs: tuple[RunResult, ...]

    @property
    def which(self) -> Combination:
        """What was run, with the first seed."""
        return self.runs[0].combination

    def jct_s(self, job: str | None = None) -> dict[int, float]:
        """Return the completion time of a job by seed; without `job`, the sum over all jobs."""
        if job is None:
            return {run.combination.seed: sum(run.completion.jct_s) for run in self.runs}
        return {
            run.combination.seed: jct_s
            for run in self.runs
            for result, jct_s in zip(run.jobs, run.completion.jct_s, strict=True)
            if result.name == job
        }

    @property
    def converged_at(self) -> tuple[int | None, ...]:
        """`converged_at` of each run."""
        return tuple(map(converged_at, self.runs))

    @property
    def completion(self) -> Completion:
        """Completion times of the jobs of all runs."""
        return Completion(tuple(itertools.chain.from_iterable(run.completion.jct_s for run in self.runs)))

    @property
    def settled(self) -> Settled | None:
        """Settled figures over all runs, or None if one has too few iterations."""
        return settled_mean(map(settled_run, self.runs))

    def over_ideal(self, number: int = LAST) -> tuple[float, ...]:
        """Return `over_ideal_last` of each run."""
        return tuple(over_ideal_last(run, number) for run in self.runs)


def summarized(runs: Sequence[RunResult]) -> list[Summarized]:
    """Group the runs that differ only by their seeds, in order."""
    groups: dict[Combination, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(replace(run.combination, seed=0), []).append(run)
    return [Summarized(tuple(group)) for group in groups.values()]


@dataclass(frozen=True)
class Compared:
    """Runs beside those that they are compared with; None: nothing else was run at this load."""

    group: Summarized
    baseline: Summarized | None

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with these runs."""
        return self.group is self.baseline

    def change(self, job: str | None = None) -> Interval | None:
        """Return how the completion time of a job, or of all together, differs from the baseline's.

        It is a fraction of the baseline's, by the seeds that both have. None for the baseline, and without
        such seeds.
        """
        if self.baseline is None or self.is_baseline:
            return None
        before, after = self.baseline.jct_s(job), self.group.jct_s(job)
        common = [seed for seed in before if seed in after]
        if not common:
            return None
        return relative({seed: before[seed] for seed in common}, {seed: after[seed] for seed in common})


def compared(experiment: Experiment, runs: Sequence[RunResult]) -> list[Compared]:
    """Return the runs by all but their seeds, each with its baseline at the same load.

    The baseline has the experiment's first routing (or strategy), and under it the plain TCP with the
    shortest mean completion time; without plain TCP, the first policy.
    """
    order = {replace(which, seed=0): place for place, which in enumerate(experiment.combinations())}
    groups = summarized(runs)
    baselines: dict[float | None, Summarized] = {}
    for load in {group.which.load for group in groups}:
        alike = [group for group in groups if group.which.load == load]
        alike.sort(key=lambda group: order.get(replace(group.which, seed=0), len(order)))
        same = [group for group in alike if strategy(group.which) == strategy(alike[0].which)]
        plain = [group for group in same if is_baseline(group.which.policy)]
        if len(alike) > 1:
            baselines[load] = min(plain, key=lambda group: group.completion.mean, default=same[0])
    return [Compared(group, baselines.get(group.which.load)) for group in groups]


def best_tcp_jct_s(runs: Sequence[RunResult], which: Combination) -> float | None:
    """Return the shortest mean completion time of a plain TCP (policy none) where `which` ran.

    That is under the same routing (or strategy) and load. None if none was run there, or nothing else.
    """
    groups = [
        group
        for group in summarized(runs)
        if (group.which.load, strategy(group.which)) == (which.load, strategy(which))
    ]
    plain = [group.completion.mean for group in groups if is_baseline(group.which.policy)]
    return min(plain, default=None) if len(groups) > 1 else None


def losses_equal(runs: Sequence[RunResult]) -> bool | None:
    """Return whether each training job has bit-identical losses in all runs of a seed.

    None if no job trains, or none was run twice.
    """
    digests: dict[tuple[str, int], list[str]] = {}
    for run in runs:
        for job in run.jobs:
            if job.summary.loss_digest:
                digests.setdefault((job.name, run.combination.seed), []).append(job.summary.loss_digest)
    repeated = [each for each in digests.values() if len(each) > 1]
    return all(len(set(each)) == 1 for each in repeated) if repeated else None


def document(experiment: Experiment, runs: Sequence[RunResult]) -> dict[str, Any]:
    """Return the content of `results.json`, which docs/results-format.md describes."""
    topology = experiment.topology
    return {
        "experiment": experiment.name,
        "topology": {
            "name": topology.name,
            "switches": len(topology.switches),
            "hosts": len(topology.hosts),
        },
        "gap_ms": experiment.gap_ms,
        "losses_equal": losses_equal(runs),
        "runs": [_run(run) for run in runs],
        "summary": [
            _summary(experiment, one, best_tcp_jct_s(runs, one.group.which))
            for one in compared(experiment, runs)
        ],
    }


def _summary(experiment: Experiment, one: Compared, best_tcp_s: float | None) -> dict[str, Any]:
    group, combination = one.group, one.group.which
    stays = [stay for run in group.runs if run.stays for stay in run.stays.stays]
    converged = sorted(each for each in group.converged_at if each is not None)
    return {
        **_named(combination),
        "runs": len(group.runs),
        "converged": len(converged),
        "converged_at_iteration_median": median(converged) if converged else None,
        "converged_at_iteration_max": max(converged, default=None),
        "over_ideal_last10_mean": fmean(group.over_ideal(WINDOW)),
        "over_ideal_last50_mean": fmean(group.over_ideal()),
        "over_ideal_last50_max": max(group.over_ideal()),
        "settled": _settled(group.settled),
        "marks_per_iteration": fmean(
            job.summary.marks_per_iteration or 0.0 for run in group.runs for job in run.jobs
        ),
        "slowest_progress": min(fairness(run).slowest for run in group.runs),
        "jain": fmean(fairness(run).jain for run in group.runs),
        **group.completion.document(),
        "jct_over_best_tcp": group.completion.mean / best_tcp_s if best_tcp_s else None,
        "baseline": None if one.baseline is None else _named(one.baseline.which),
        "jct_over_baseline": _over_baseline(one),
        "jobs": [] if experiment.cluster else [_job_summary(one, job.name) for job in group.runs[0].jobs],
        **(times(stays) if stays else {}),
    }


def _named(which: Combination) -> dict[str, Any]:
    """Return what distinguishes a combination from others, but for the seed."""
    return {
        "strategy": strategy(which),
        "routing": which.routing,
        "policy": which.policy,
        "congestion_control": which.control,
        "load": which.load,
    }


def _over_baseline(one: Compared, job: str | None = None) -> float | None:
    change = one.change(job)
    return 1.0 if one.is_baseline else None if change is None else 1.0 + change.mean


def _job_summary(one: Compared, job: str) -> dict[str, Any]:
    return {
        "name": job,
        "jct_s_mean": fmean(one.group.jct_s(job).values()),
        "jct_over_baseline": _over_baseline(one, job),
    }


def identity(run: RunResult) -> dict[str, Any]:
    """Return the columns that distinguish `run` from others."""
    return {
        **_named(run.combination),
        "target": run.target,
        "seed": run.combination.seed,
    }


def _run(run: RunResult) -> dict[str, Any]:
    return {
        **identity(run),
        "max_flows_per_link": run.max_flows_per_link,
        "max_flows_per_link_any_step": run.max_flows_per_link_any_step,
        "max_flows_per_link_all": run.max_flows_per_link_all,
        "over_ideal_last50": over_ideal_last(run),
        "over_bound_last50": over_bound_last(run),
        "settled": _settled(settled_run(run)),
        "converged_at_iteration": converged_at(run),
        "fairness": asdict(fairness(run)),
        "learned": [asdict(each) for each in run.learned],
        **_paced(run),
        "jobs": _jobs(run),
        "links": [
            {
                "link": link.link,
                "max_flows_per_link": link.one_job_step,
                "max_flows_per_link_any_step": link.one_job,
                "max_flows_per_link_all": link.all_jobs,
                "flows": link.flows,
                "bytes": link.bytes,
            }
            for link in run.links
        ],
        "queues": [asdict(queue) for queue in run.queues],
        **run.completion.document(),
        **(run.stays.document() if run.stays else {}),
        "over_alone_mean": fmean(run.over_alone) if run.over_alone else None,
        "over_alone_p99": percentile(run.over_alone, 99),
        "scheduling": [host.document() for host in run.scheduling],
        "policy_report": dict(run.policy_report),
        "overhead": dict(run.overhead),
        "origin": None if run.origin is None else asdict(run.origin),
    }


SHIFTED = 5
"""Iterations from when a job has got its pace until it counts as shifted."""


def shifted_means(run: RunResult, of: Callable[[Summary], Sequence[float]]) -> dict[str, float]:
    """Return each shifted job's mean of what `of` gives per iteration, from the fifth one after the shift on;
    without the jobs that have no such iteration."""
    return {
        job.name: fmean(values)
        for job in run.jobs
        if job.name in run.paced.since and (values := of(job.summary)[run.paced.since[job.name] + SHIFTED :])
    }


def over_ideal_shifted(run: RunResult) -> float | None:
    """Return the mean over shifted jobs of iteration time over the ideal, from the fifth iteration
    after the shift on; None if no job has so many."""
    times = shifted_means(run, lambda summary: summary.iteration_ms)
    found = [times[job.name] / job.ideal_ms for job in run.jobs if job.name in times]
    return fmean(found) if found else None


def marks_shifted(run: RunResult) -> float | None:
    """Return the mean over shifted jobs of ECN marks per iteration, from the fifth one after the shift on;
    None if no job has so many, or none that were counted for each."""
    found = shifted_means(run, lambda summary: summary.iteration_marks)
    return fmean(found.values()) if found else None


def _paced(run: RunResult) -> dict[str, Any]:
    paced = run.paced
    return {
        "score": paced.score,
        "shifts_ms": dict(paced.shifts_ms),
        "drift_ms_p99": paced.drift_ms_p99,
        "corrections": paced.corrections,
        "over_ideal_shifted": over_ideal_shifted(run),
        "marks_shifted": marks_shifted(run),
        "pacing": {
            "since": dict(paced.since),
            "periods_ms": dict(paced.periods_ms),
            "solved": paced.solved,
            "adjustments_per_minute": paced.adjustments_per_minute,
            "waited": paced.waited,
            "events": list(paced.events),
        },
    }


def _settled(figures: Settled | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    found = {"first_iteration": LEARNING, **asdict(figures)}
    if not figures.has_p99:
        found |= {"iteration_ms_p99": None, "over_ideal_p99": None}
    return found


def _jobs(run: RunResult) -> list[dict[str, Any]]:
    if run.stays is None:
        return [_job(job) for job in run.jobs]
    return [{**_job(job), **stay.document()} for job, stay in zip(run.jobs, run.stays.stays, strict=True)]


def _job(job: JobResult) -> dict[str, Any]:
    return {
        "name": job.name,
        "collective": job.summary.collective,
        "hosts": list(job.hosts),
        "iterations": len(job.summary.iteration_ms),
        "iteration_ms_mean": job.mean_ms,
        "iteration_ms_p99": percentile(job.summary.iteration_ms, 99),
        "iteration_ms_max": max(job.summary.iteration_ms),
        "iteration_ms_ideal": job.ideal_ms,
        "iteration_ms_alone": job.alone_ms,
        "iteration_ms_bound": job.bound_ms,
        "ratio_to_ideal": job.ratio_to_ideal,
        "settled": _settled(settled(job)),
        "jct_s": job.summary.jct_s,
        "max_flows_per_link": job.max_flows_per_link,
        "bytes": job.summary.bytes,
        "marks_per_iteration": job.summary.marks_per_iteration,
        "retransmitted": job.summary.retransmitted,
        "timeouts": job.summary.timeouts,
        "loss_first": fmean(job.summary.losses[0]) if job.summary.losses else None,
        "loss_last": fmean(job.summary.losses[-1]) if job.summary.losses else None,
        "loss_digest": job.summary.loss_digest,
    }
