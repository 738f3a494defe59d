"""What `entrain run` would do: which runs, at least how long, and with how many processors."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.topology import Target
from entrain.bound import bound_ms
from entrain.experiment import Combination, Experiment, Job
from entrain.results.values import strategy
from machine.errors import BadInput
from machine.explain import suggestion
from workloads.collectives import DDP

GBPS_PER_PROCESSOR: dict[Target, float] = {"softswitch": 2.0, "bmv2": 0.1, "tofino": float("inf")}
"""What one processor carries from host to host through a switch: half of what two carry without offloads
(docs/performance.md). With offloads softswitch carries more, so this errs on the safe side."""

BRING_UP_S = 3.0
"""Time to bring up 8 switches and 16 hosts on two processors (docs/performance.md), rounded."""


@dataclass(frozen=True)
class Plan:
    """What the runs of an experiment need."""

    runs: tuple[Combination, ...]
    """What would run, in this order."""
    kept: int
    """Number of runs that the output directory already has."""
    switches: int
    hosts: int
    seconds: float
    """Time of all runs if no flow met another, and with it that of bringing up the network."""
    run_seconds: tuple[float, ...]
    """The same for each of `runs`, without the network."""
    processors: float
    """Processors that the network and the ranks want while all jobs send or train at the same time."""
    available: int
    """Processors of this machine."""

    def document(self) -> dict[str, Any]:
        """Return what `entrain run --dry-run --json` prints."""
        runs = [
            {**name_parts(run), "seconds_at_least": seconds}
            for run, seconds in zip(self.runs, self.run_seconds, strict=True)
        ]
        return {
            "runs": runs,
            "kept": self.kept,
            "switches": self.switches,
            "hosts": self.hosts,
            "seconds_at_least": self.seconds,
            "processors_wanted": self.processors,
            "processors": self.available,
        }


def plan(experiment: Experiment, todo: Sequence[Combination], kept: int = 0) -> Plan:
    """Return what running `todo` takes; `kept` runs are there already."""
    times = tuple(run_seconds(experiment, combination) for combination in todo)
    return Plan(
        tuple(todo),
        kept,
        len(experiment.topology.switches),
        len(experiment.topology.hosts),
        sum(times)
        + sum(alone_seconds(experiment, each) for each in {replace(each, seed=0) for each in todo})
        + (BRING_UP_S if todo else 0.0),
        times,
        _processors(experiment),
        len(os.sched_getaffinity(0)),
    )


def name_parts(combination: Combination) -> dict[str, Any]:
    """Return what distinguishes a run from the others of its experiment, by the names that --only takes."""
    return {
        "routing": strategy(combination),
        "policy": combination.policy,
        "congestion_control": combination.control,
        "load": combination.load,
        "seed": combination.seed,
    }


def chosen(experiment: Experiment, only: Collection[str]) -> list[Combination]:
    """Return the runs that `only` selects: each of its texts is KEY=VALUE or KEY=VALUE,VALUE.

    A run must have one of the values of each key. Without `only`, it is all runs. Raises BadInput.
    """
    runs = list(experiment.combinations())
    return [runs[place] for place in selected([name_parts(run) for run in runs], only)]


def selected(parts: Sequence[Mapping[str, Any]], only: Collection[str]) -> list[int]:
    """Return the places in `parts` (what distinguishes each run) that `only` selects. Raises BadInput."""
    places = list(range(len(parts)))
    for text in only:
        key, _, values = text.partition("=")
        there = list(dict.fromkeys(_text(part[key]) for part in parts)) if key in parts[0] else []
        if not there or not values:
            near = f"as in --only {key}={there[0]}" if there else suggestion(key, parts[0])
            raise BadInput(f"--only {text}: give KEY=VALUE; {near}")
        for value in values.split(","):
            if value not in there:
                raise BadInput(f"--only {text}: no run has {key} {value!r}; there is {', '.join(there)}")
        places = [place for place in places if _text(parts[place][key]) in values.split(",")]
    if not places:
        raise BadInput(f"--only {' '.join(only)}: no run has all of these together; give fewer of them")
    return places


def _text(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def run_seconds(experiment: Experiment, combination: Combination) -> float:
    """Return how long the jobs of a run take if no flow meets another (s)."""
    if (cluster := experiment.cluster) is not None:
        return max(each.arrival_s + each.duration_s for each in cluster.arrivals(combination.seed))
    at = experiment.at(combination.load)
    offsets = (at.start_offset_ms(combination.seed, job) + job.spec.start_ms for job in at.jobs)
    return max(
        offset / 1e3 + _iteration_s(at, job) * job.spec.iterations
        for offset, job in zip(offsets, at.jobs, strict=True)
    )


def _iteration_s(experiment: Experiment, job: Job) -> float:
    return bound_ms(job.spec, experiment.rates_mbps(job), mtu=experiment.topology.mtu) / 1e3


def alone_seconds(experiment: Experiment, combination: Combination) -> float:
    """Return how long it takes to measure the jobs of a run alone; of equal jobs, one (s)."""
    at = experiment.at(combination.load)
    return sum({_iteration_s(at, job) for job in at.jobs}) * experiment.alone_iterations


def _processors(experiment: Experiment) -> float:
    used = {host for job in experiment.jobs for host in job.hosts}
    if experiment.cluster is not None:
        used = {host.name for host in experiment.topology.hosts}
    rate_gbps = sum(experiment.topology.host_rates_mbps[host] for host in used) / 1e3
    training = sum(len(job.hosts) for job in experiment.jobs if job.spec.collective == DDP)
    return rate_gbps / GBPS_PER_PROCESSOR[experiment.target] + training
