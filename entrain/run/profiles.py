"""Measure the profiles of an experiment's jobs: each runs alone, while the agents of its hosts count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from entrain.experiment import Combination, Experiment
from entrain.policies.policy import FileRouting
from entrain.profiling import Counting, Measured, measured
from entrain.run.runner import Report, Running, run_one
from machine.errors import EntrainError
from mininet_topos.agents import agents


def conditions(experiment: Experiment) -> tuple[FileRouting, Combination]:
    """Return how profiles are measured: as in the experiment's first run, but under plain TCP."""
    first = next(experiment.combinations())
    control = next(iter(experiment.controls), None)
    return experiment.routing[0], replace(first, policy="none", control=control)


def profiles(running: Running, iterations: int, report: Report) -> Iterator[Measured]:
    """Yield what is measured of each job in turn, as it runs alone for so many iterations under TCP.

    Raises RunFailed, and EntrainError for an agent that fails and for a job that sends nothing between its
    hosts.
    """
    experiment = running.experiment
    routing, combination = conditions(experiment)
    progress = running.directory / "progress"
    progress.mkdir()
    topology, names = experiment.topology, {mark: name for name, mark in running.marks.items()}
    with agents(running.network, running.record, running.directory, progress=progress) as addresses:
        for number, job in enumerate(experiment.jobs):
            spec = job.spec.model_copy(
                update={"iterations": iterations, "start_ms": 0.0, "progress": progress}
            )
            only = replace(experiment, jobs=(replace(job, spec=spec),), start_spread_ms=0.0, sample_ms=None)

            def told(what: str, part: float, number: int = number) -> None:
                report(what, (number + part) / len(experiment.jobs))

            with Counting({host: addresses[host] for host in job.hosts}) as counting:
                run_one(replace(running, experiment=only), combination, told, name=f"profile-{job.name}")
                counts = counting.counts()
            found = measured(topology, routing, counts, names)
            if job.name not in found:
                raise EntrainError(f"job {job.name}: nothing was counted that its hosts sent")
            yield found[job.name]
