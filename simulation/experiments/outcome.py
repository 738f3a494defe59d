"""What the run of a point reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulation import detail
from simulation.engine import Outcome
from simulation.experiments.experiment import Point
from simulation.jobs import Job
from simulation.results import CoflowTimes, Completion, Decision, JobTimes, Result
from simulation.topology import Topology
from simulation.usage import Usage


def recorded_usage(point: Point, topology: Topology) -> Usage | None:
    """Return a recorder of link usage if the point asks for one, else None."""
    return Usage(len(topology.capacity), point["usage_s"]) if "usage_s" in point else None


def result_of(
    outcome: Outcome,
    jobs: list[Job],
    topology: Topology,
    seconds: Sequence[float],
    *,
    waits: list[float] | None = None,
    flow_times: bool = False,
    usage: Usage | None = None,
    **figures: Any,
) -> Result:
    """Return the completion times of `jobs` and the details that the point asks for.

    `seconds` holds the decision times. `waits` (s, per job) is how long each job's start was delayed, which
    counts as waiting. `figures` are more fields of `Completion`.
    """
    held = np.array(waits) if waits else np.zeros(len(jobs))
    jct = np.array([record.jct for record in outcome.jobs]) + held
    arrivals = np.array([record.arrival for record in outcome.jobs]) - held
    bound = np.array([job.lower_bound(topology) for job in jobs])
    cct = np.array([record.cct for record in outcome.coflows])
    single = {job.ident for job in jobs if job.iterations == 1 and len(job.tasks) == 1}
    names = [c.job if c.job in single else c.ident for c in outcome.coflows]
    return Result(
        Completion(
            total_jct_s=float(jct.sum()),
            mean_jct_s=float(jct.mean()),
            p95_jct_s=float(np.percentile(jct, 95)),
            p99_jct_s=float(np.percentile(jct, 99)),
            max_jct_s=float(jct.max()),
            lower_bound_s=float(bound.sum()),
            within_10_s=float((jct < 10.0).mean()),
            bound_within_10_s=float((bound < 10.0).mean()),
            events=outcome.events,
            decision=Decision.of(seconds) if seconds else None,
            mean_cct_s=float(cct.mean()) if len(cct) else None,
            p95_cct_s=float(np.percentile(cct, 95)) if len(cct) else None,
            **figures,
        ),
        tuple(
            JobTimes(r.ident, float(a), float(t), r.waiting + float(h), float(b))
            for r, a, t, h, b in zip(outcome.jobs, arrivals, jct, held, bound, strict=True)
        ),
        tuple(
            CoflowTimes(name, c.arrival, c.cct, c.bytes)
            for name, c in zip(names, outcome.coflows, strict=True)
        ),
        detail.flow_times(names, outcome.coflows) if flow_times else None,
        None
        if usage is None
        else detail.link_usage(usage, topology, max(record.finish for record in outcome.jobs)),
    )


def drawn_result(outcomes: Sequence[Outcome], jobs: list[Job], topology: Topology) -> Result:
    """Return the completion times of all draws of a workload; `jobs` are those of all `outcomes`, in order.

    Jobs have the number of their draw before their name.
    """
    records = [
        replace(record, ident=f"{draw}/{record.ident}")
        for draw, outcome in enumerate(outcomes)
        for record in outcome.jobs
    ]
    return result_of(
        Outcome(records, events=sum(outcome.events for outcome in outcomes)),
        jobs,
        topology,
        [],
        draws_jct_s=tuple(float(np.mean([record.jct for record in each.jobs])) for each in outcomes),
        mean_queued_s=float(np.mean([record.start - record.arrival for record in records])),
    )
