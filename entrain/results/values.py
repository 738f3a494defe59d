"""What a run measured, as values, and as `results.json`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import fmean, median
from typing import Any

import numpy as np
from pydantic import JsonValue

from entrain.experiment import Combination, Experiment, Job
from entrain.policies import is_baseline, series
from entrain.policies.reports import HostReport, Learned
from entrain.run.contention import LinkContention
from entrain.run.samples import Throughput, Window
from mininet_topos.links import FRAME_BYTES
from workloads.collectives import steps
from workloads.records import Summary

PAYLOAD_PER_FRAME = 1448
"""TCP payload of a full-size frame, with timestamps."""


@dataclass(frozen=True)
class JobResult:
    """A job in one run.

    summary: what its ranks measured. bound_ms: the iteration time that it would have if only its hosts' links
    limited it. max_flows_per_link: the most flows of one of its steps on one link at one time. alone_ms: the
    iteration time that it did have with the network for itself, under the same congestion control; None: that
    was not measured.
    """

    name: str
    hosts: tuple[str, ...]
    summary: Summary
    bound_ms: float
    max_flows_per_link: int
    alone_ms: float | None = None

    @property
    def ideal_ms(self) -> float:
        """The iteration time with the network for itself: as measured, else as computed."""
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
    """What schedules the flows of a run, by one name, which tells MLTCP's variants from plain controls."""
    return series(combination.policy, combination.control)


@dataclass(frozen=True)
class Timeline:
    """What was sampled during a run; empty unless the experiment asks for it."""

    throughput: tuple[Throughput, ...] = ()
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Completion:
    """Job completion times, s (flow-scheduling paper, figure 8 and table I)."""

    jct_s: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the jobs."""
        return fmean(self.jct_s)

    def document(self) -> dict[str, float]:
        """As in results.json; p99 is interpolated, and with few jobs nearly the maximum."""
        return {
            "jct_s_mean": self.mean,
            "jct_s_min": min(self.jct_s),
            "jct_s_max": max(self.jct_s),
            "jct_s_p99": float(np.percentile(self.jct_s, 99)),
        }


@dataclass(frozen=True)
class RunResult:
    """One run of the experiment. `overhead` says what emulating and measuring cost; see `document`."""

    combination: Combination
    target: str
    jobs: tuple[JobResult, ...]
    links: tuple[LinkContention, ...]
    overhead: Mapping[str, int | float] = field(default_factory=dict)
    timeline: Timeline = Timeline()
    learned: tuple[Learned, ...] = ()
    scheduling: tuple[HostReport, ...] = ()
    policy_report: Mapping[str, JsonValue] = field(default_factory=dict)
    """What else the policy says, where it has more to say."""

    @property
    def completion(self) -> Completion:
        """Of its jobs."""
        return Completion(tuple(job.summary.jct_s or 0.0 for job in self.jobs))

    @property
    def max_flows_per_link(self) -> int:
        """The most flows of one job, in one step, on one link at one time."""
        return max((link.one_job_step for link in self.links), default=0)

    @property
    def max_flows_per_link_any_step(self) -> int:
        """The same whatever the steps: a rank that is ahead sends while others are in the step before."""
        return max((link.one_job for link in self.links), default=0)

    @property
    def max_flows_per_link_all(self) -> int:
        """The most flows of all jobs on one link at one time."""
        return max((link.all_jobs for link in self.links), default=0)


LEARNING = 50
"""Iterations at the beginning of a run that are not settled: in the first few MLTCP learns what an iteration
is, and in some thirty the jobs slide apart (MLTCP, section 5)."""

SETTLED_LEAST = 50
"""A run has settled figures when so many iterations, or more, follow upon learning."""

LAST = 50
"""Iterations at the end of a run, whether or not it learned in them."""

WINDOW = 10
CONVERGED = 1.05
HELD = 20
"""A run has converged where the mean of any `WINDOW` successive iterations of each job keeps within 5 % of
ideal until the end, and for `HELD` iterations or more: a few at the end may do so by chance."""


@dataclass(frozen=True)
class Settled:
    """What iterations came to after learning: of a job, or on average over jobs and runs.

    iterations: how many they are (over several jobs, the fewest). Times are in ms; `over_` is the mean
    iteration time over the ideal one, or over the computed bound, `over_ideal_p99` the 99th percentile over
    the ideal one.
    """

    iterations: int
    iteration_ms_mean: float
    iteration_ms_p99: float
    over_ideal: float
    over_bound: float
    over_ideal_p99: float


def settled(job: JobResult) -> Settled | None:
    """Of one job; None: it has too few iterations for that."""
    times = job.summary.iteration_ms[LEARNING:]
    if len(times) < SETTLED_LEAST:
        return None
    mean, p99 = fmean(times), float(np.percentile(times, 99))
    return Settled(len(times), mean, p99, mean / job.ideal_ms, mean / job.bound_ms, p99 / job.ideal_ms)


def settled_mean(parts: Iterable[Settled | None]) -> Settled | None:
    """Of several jobs or runs, each of equal weight; None: one of them has too few iterations."""
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
    """Of the jobs of a run."""
    return settled_mean(map(settled, run.jobs))


def last_ms(job: JobResult, number: int = LAST) -> float:
    """Mean of the job's last `number` iterations, or of all if there are fewer."""
    return fmean(job.summary.iteration_ms[-number:])


def over_ideal_last(run: RunResult, number: int = LAST) -> float:
    """Iteration time over ideal in the last iterations of each job, mean over the jobs."""
    return fmean(last_ms(job, number) / job.ideal_ms for job in run.jobs)


def over_bound_last(run: RunResult) -> float:
    """The same over what would be possible by the hosts' links."""
    return fmean(last_ms(job) / job.bound_ms for job in run.jobs)


@dataclass(frozen=True)
class Fairness:
    """How evenly the jobs of a run advance. A job's progress is its ideal iteration time over its mean one: 1
    is unhindered. `jain` is Jain's index of the progresses: 1 is even, 1/n is one job alone."""

    slowest: float
    fastest: float
    jain: float
    longest_over_ideal: float
    """The longest iteration of any job, over its ideal."""


def fairness(run: RunResult) -> Fairness:
    """Of all jobs, over all of their iterations."""
    progress = [1 / job.ratio_to_ideal for job in run.jobs]
    return Fairness(
        min(progress),
        max(progress),
        sum(progress) ** 2 / (len(progress) * sum(each**2 for each in progress)),
        max(max(job.summary.iteration_ms) / job.ideal_ms for job in run.jobs),
    )


def converged_at(run: RunResult) -> int | None:
    """The first iteration from which every window of every job is within 5 % of ideal until the end.

    None: there is none, or fewer than `HELD` iterations follow.
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
    """Runs that differ by their seeds alone."""

    runs: tuple[RunResult, ...]

    @property
    def converged_at(self) -> tuple[int | None, ...]:
        """`converged_at` of each run."""
        return tuple(map(converged_at, self.runs))

    @property
    def completion(self) -> Completion:
        """Of the jobs of all runs."""
        return Completion(tuple(itertools.chain.from_iterable(run.completion.jct_s for run in self.runs)))

    @property
    def settled(self) -> Settled | None:
        """Of all runs; None: one has too few iterations."""
        return settled_mean(map(settled_run, self.runs))

    def over_ideal(self, number: int = LAST) -> tuple[float, ...]:
        """`over_ideal_last` of each run."""
        return tuple(over_ideal_last(run, number) for run in self.runs)


def summarized(runs: Sequence[RunResult]) -> list[Summarized]:
    """The runs by what they have in common but for the seed, in their order."""
    groups: dict[Combination, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(replace(run.combination, seed=0), []).append(run)
    return [Summarized(tuple(group)) for group in groups.values()]


def best_tcp_jct_s(runs: Sequence[RunResult]) -> float | None:
    """The shortest mean completion time among plain TCPs (policy none); None where none was run."""
    plain = [
        group.completion.mean for group in summarized(runs) if is_baseline(group.runs[0].combination.policy)
    ]
    return min(plain, default=None)


def losses_equal(runs: Sequence[RunResult]) -> bool | None:
    """Whether each job that trains has the same losses, bit for bit, in all runs of a seed; None where no job
    trains, or none did so twice."""
    digests: dict[tuple[str, int], list[str]] = {}
    for run in runs:
        for job in run.jobs:
            if job.summary.loss_digest:
                digests.setdefault((job.name, run.combination.seed), []).append(job.summary.loss_digest)
    repeated = [each for each in digests.values() if len(each) > 1]
    return all(len(set(each)) == 1 for each in repeated) if repeated else None


def bound_ms(job: Job, host_rates_mbps: Sequence[float]) -> float:
    """Iteration time of a job that has the network for itself, if only its hosts' links limit it.

    Compute time, and per step of the collective the longest that a rank needs to send or to receive its share
    at its host's rate (`host_rates_mbps`, by rank) with full-size frames. Workers are supposed to divide
    their links evenly among the parameter servers; that matters only where their links are the limit (slower
    than the servers', or with fewer workers than servers).
    """
    spec = job.spec
    total = spec.compute_s() * 1e3
    for step in steps(spec.collective, len(spec.hosts), spec.options):
        sending, receiving = [0.0] * len(spec.hosts), [0.0] * len(spec.hosts)
        for flow in step:
            wire_bits = flow.fraction * spec.total_bytes() * 8 * FRAME_BYTES / PAYLOAD_PER_FRAME
            sending[flow.src] += wire_bits / host_rates_mbps[flow.src] / 1e3
            receiving[flow.dst] += wire_bits / host_rates_mbps[flow.dst] / 1e3
        total += max(*sending, *receiving)
    return total


def document(experiment: Experiment, runs: Sequence[RunResult]) -> dict[str, Any]:
    """`results.json`; docs/experiments.md describes it."""
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
        "summary": [_summary(group, best_tcp_jct_s(runs)) for group in summarized(runs)],
    }


def _summary(group: Summarized, best_tcp_s: float | None) -> dict[str, Any]:
    combination = group.runs[0].combination
    converged = sorted(each for each in group.converged_at if each is not None)
    return {
        "routing": combination.routing,
        "policy": combination.policy,
        "congestion_control": combination.control,
        "runs": len(group.runs),
        "converged": len(converged),
        "converged_at_iteration_median": median(converged) if converged else None,
        "converged_at_iteration_max": max(converged, default=None),
        "over_ideal_last10_mean": fmean(group.over_ideal(WINDOW)),
        "over_ideal_last50_mean": fmean(group.over_ideal()),
        "over_ideal_last50_max": max(group.over_ideal()),
        "settled": _settled(group.settled),
        "slowest_progress": min(fairness(run).slowest for run in group.runs),
        "jain": fmean(fairness(run).jain for run in group.runs),
        **group.completion.document(),
        "jct_over_best_tcp": group.completion.mean / best_tcp_s if best_tcp_s else None,
    }


def identity(run: RunResult) -> dict[str, Any]:
    """What tells `run` from others."""
    return {
        "routing": run.combination.routing,
        "policy": run.combination.policy,
        "congestion_control": run.combination.control,
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
        "jobs": [_job(job) for job in run.jobs],
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
        **run.completion.document(),
        "scheduling": [host.document() for host in run.scheduling],
        "policy_report": dict(run.policy_report),
        "overhead": dict(run.overhead),
    }


def _settled(figures: Settled | None) -> dict[str, Any] | None:
    return None if figures is None else {"first_iteration": LEARNING, **asdict(figures)}


def _job(job: JobResult) -> dict[str, Any]:
    return {
        "name": job.name,
        "collective": job.summary.collective,
        "hosts": list(job.hosts),
        "iterations": len(job.summary.iteration_ms),
        "iteration_ms_mean": job.mean_ms,
        "iteration_ms_p99": job.summary.iteration_ms_p99,
        "iteration_ms_max": max(job.summary.iteration_ms),
        "iteration_ms_ideal": job.ideal_ms,
        "iteration_ms_alone": job.alone_ms,
        "iteration_ms_bound": job.bound_ms,
        "ratio_to_ideal": job.ratio_to_ideal,
        "settled": _settled(settled(job)),
        "jct_s": job.summary.jct_s,
        "max_flows_per_link": job.max_flows_per_link,
        "bytes": job.summary.bytes,
        "loss_first": fmean(job.summary.losses[0]) if job.summary.losses else None,
        "loss_last": fmean(job.summary.losses[-1]) if job.summary.losses else None,
        "loss_digest": job.summary.loss_digest,
    }
