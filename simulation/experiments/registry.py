"""All experiments by the names that users type."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from machine import foreign
from machine.errors import BadInput
from machine.explain import suggestion
from simulation.experiments import (
    cassini,
    coflows,
    matrix,
    mltcp,
    parrot,
    pollux,
    slots,
    slots_load,
    unfairness,
    vclos,
)
from simulation.experiments.experiment import Experiment, Point

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for module in (parrot, slots, slots_load, coflows, mltcp, unfairness, cassini, vclos, matrix, pollux)
    for experiment in module.EXPERIMENTS
}


def points(
    name: str,
    trace: Path | None,
    policy: str | None,
    limit: int | None,
    seed: int,
    *,
    flow_times: bool = False,
    usage_s: float | None = None,
    scaled: bool = False,
) -> tuple[Experiment, list[Point]]:
    """Return the experiment called `name` and its points.

    `flow_times` records the time of each flow, `usage_s` the links' utilisation in bins of this length (s).
    `scaled` takes only sizes and durations from the trace, and scales these to the experiment's load.
    Raises BadInput for unknown names and invalid combinations.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"experiment {name!r} is unknown; {suggestion(name, EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    if limit is not None and limit < 1:
        raise BadInput(f"--limit is {limit}; give at least 1")
    policies = experiment.policies
    if policy is not None:
        policies = tuple(policy.split(","))
        known = tuple(experiment.accepts()) if experiment.accepts else experiment.policies
        for one in policies:
            if one not in known:
                raise BadInput(f"policy {one!r} is unknown to {name}; {suggestion(one, known)}")
    if trace is not None and experiment.trace is None:
        raise BadInput(f"{name} makes its own workload; leave out --trace")
    if usage_s is not None and not (math.isfinite(usage_s) and usage_s > 0.0):
        raise BadInput(f"--usage is {usage_s}; give the width of a bin, a positive number of seconds")
    if (flow_times or usage_s is not None) and not experiment.sends_flows:
        raise BadInput(f"{name} has no flows over a network to record; leave out --flows and --usage")
    base: Point = {"experiment": name, "limit": limit, "seed": seed}
    # Only what is asked for, so that results kept without either are found again.
    if flow_times:
        base["flow_times"] = True
    if usage_s is not None:
        base["usage_s"] = usage_s
    if scaled:
        if trace is None or not experiment.scales_traces:
            raise BadInput("--scale-trace belongs to --trace of vclos-...; leave it out")
        base["scaled"] = True
    if experiment.trace is not None:
        path = trace or experiment.trace.path
        if path is not None and not path.is_file():
            default = "the included one" if experiment.trace.path else "one drawn with its distributions"
            raise BadInput(
                f"{path}: there is no such file; get {experiment.trace.origin}, "
                f"or leave out --trace for {default}"
            )
        if path is not None and path.suffix == ".et":
            raise BadInput(f"{path}: is no trace that {name} reads{foreign.remedy(path)}")
        if path is not None:
            base["trace"] = str(path.resolve())
    if trace is not None:
        title = f"{trace.name}: {experiment.title.rpartition(': ')[2]}"
        experiment = replace(experiment, title=title)
    return experiment, experiment.points(base, policies)
