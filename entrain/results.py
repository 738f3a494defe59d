"""What a run measured, as values, and as `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from entrain.contention import LinkContention
from entrain.experiment import Combination, Experiment, Job
from mininet_topos.links import FRAME_BYTES
from workloads.collectives import Options, steps
from workloads.records import Summary

PAYLOAD_PER_FRAME = 1448
"""TCP payload of a full-size frame, with timestamps."""


@dataclass(frozen=True)
class JobResult:
    """A job in one run.

    summary: what its ranks measured. ideal_ms: the iteration time that it would have with the network for
    itself. max_flows_per_link: the most flows of one of its steps on one link at one time.
    """

    name: str
    hosts: tuple[str, ...]
    summary: Summary
    ideal_ms: float
    max_flows_per_link: int

    @property
    def mean_ms(self) -> float:
        """Mean iteration time."""
        return sum(self.summary.iteration_ms) / len(self.summary.iteration_ms)

    @property
    def ratio_to_ideal(self) -> float:
        """Mean iteration time over the ideal one."""
        return self.mean_ms / self.ideal_ms


@dataclass(frozen=True)
class RunResult:
    """One run of the experiment. `overhead` says what emulating and measuring cost; see `document`."""

    combination: Combination
    target: str
    jobs: tuple[JobResult, ...]
    links: tuple[LinkContention, ...]
    overhead: Mapping[str, float] = field(default_factory=dict)

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


LAST = 50
"""Iterations at the end of a run that show where it has settled."""

WINDOW = 10
CONVERGED = 1.05
"""A run has converged where the mean of so many successive iterations of each job is within 5 % of ideal."""


def over_ideal_last(run: RunResult) -> float:
    """Iteration time over ideal in the last iterations of each job, mean over the jobs."""
    ratios = []
    for job in run.jobs:
        last = job.summary.iteration_ms[-LAST:]
        ratios.append(sum(last) / len(last) / job.ideal_ms)
    return sum(ratios) / len(ratios)


def converged_at(run: RunResult) -> int | None:
    """The first iteration from which a window of iterations of every job is as short as with the network for
    itself, within 5 %; None if there is none."""
    shortest = min(len(job.summary.iteration_ms) for job in run.jobs)
    for first in range(shortest - WINDOW + 1):
        windows = ((job, job.summary.iteration_ms[first : first + WINDOW]) for job in run.jobs)
        if all(sum(times) / WINDOW <= CONVERGED * job.ideal_ms for job, times in windows):
            return first
    return None


def ideal_ms(job: Job, host_rates_mbps: Sequence[float]) -> float:
    """Iteration time of a job that has the network for itself, if only its hosts' links limit it.

    Compute time, and per step of the collective the longest that a rank needs to send or to receive its share
    at its host's rate (`host_rates_mbps`, by rank) with full-size frames.
    """
    spec = job.spec
    total = spec.compute_s() * 1e3
    for step in steps(spec.collective, len(spec.hosts), Options(spec.group, spec.servers, spec.microbatches)):
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
        "runs": [_run(run) for run in runs],
    }


def _run(run: RunResult) -> dict[str, Any]:
    return {
        "routing": run.combination.routing,
        "policy": run.combination.policy,
        "congestion_control": run.combination.control,
        "target": run.target,
        "seed": run.combination.seed,
        "max_flows_per_link": run.max_flows_per_link,
        "max_flows_per_link_any_step": run.max_flows_per_link_any_step,
        "max_flows_per_link_all": run.max_flows_per_link_all,
        "over_ideal_last50": over_ideal_last(run),
        "converged_at_iteration": converged_at(run),
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
        "overhead": dict(run.overhead),
    }


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
        "ratio_to_ideal": job.ratio_to_ideal,
        "jct_s": job.summary.jct_s,
        "max_flows_per_link": job.max_flows_per_link,
        "bytes": job.summary.bytes,
    }
