"""Names in tables and pictures: of runs, of their policies and routings, and of ideal times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from entrain.experiment import Combination, Experiment
from entrain.policies import is_baseline, policies
from entrain.results.values import RunResult, scheduler, strategy

_ROUTINGS = {
    "ecmp": "ECMP",
    "recmp": "rECMP",
    "source": "source routing",
    "vclos": "vClos",
    "ocs-vclos": "OCS-vClos",
}


def routing_name(routing: str) -> str:
    """Return the name of a routing or a strategy in sentences and plots."""
    return _ROUTINGS.get(routing, routing)


def policy_name(experiment: Experiment, policy: str) -> str:
    """Return a policy's name, with the scheduler that its table names: `slots (largest-first)`."""
    variant = _variant(experiment, policy)
    return f"{policy} ({variant})" if variant else policy


def scheduler_name(experiment: Experiment, combination: Combination) -> str:
    """Return the name of what schedules a run's flows, with the scheduler that the policy's table names."""
    if combination.control is None and is_baseline(combination.policy):
        return experiment.network.congestion_control or "TCP, kernel's default"
    variant = _variant(experiment, combination.policy)
    return f"{scheduler(combination)} ({variant})" if variant else scheduler(combination)


def control_name(experiment: Experiment, combination: Combination) -> str:
    """Return the name of the jobs' congestion control."""
    return combination.control or experiment.network.congestion_control or "kernel's default"


def label(
    experiment: Experiment, run: RunResult, runs: Sequence[RunResult], *, in_words: bool = False
) -> str:
    """Return the parameters that distinguish `run` from the other runs; routings `in_words` or as typed."""
    combination = run.combination
    routing = strategy(combination)
    if in_words:
        routing = routing_name(routing)
    others = [other.combination for other in runs]
    parts: list[str] = []
    if combination.load is not None:
        parts.append(f"{combination.load:g} %")
    if len({strategy(other) for other in others}) > 1:
        parts.append(routing)
    if len({other.policy for other in others}) > 1:
        parts.append(policy_name(experiment, combination.policy))
    if len({other.control for other in others}) > 1:
        parts.append(control_name(experiment, combination))
    if len({other.seed for other in others}) > 1:
        parts.append(f"seed {combination.seed}")
    if not parts:
        parts = [routing]
        if combination.policy != "none" or combination.control is not None:
            parts += [policy_name(experiment, combination.policy), control_name(experiment, combination)]
    return ", ".join(parts)


def ideal_name(runs: Iterable[RunResult]) -> str:
    """Return the name of the ideal iteration times of `runs`: measured, computed, or a mixture."""
    return {
        "alone": "alone in the network (measured)",
        "bound": "computed bound",
        "ideal": "ideal (measured alone, or computed bound)",
    }[ideal_word(runs)]


def ideal_word(runs: Iterable[RunResult]) -> str:
    """Return the same in one word."""
    measured = {job.alone_ms is not None for run in runs for job in run.jobs}
    return "ideal" if len(measured) > 1 else "alone" if measured == {True} else "bound"


def _variant(experiment: Experiment, policy: str) -> str | None:
    installed = policies().get(policy)
    return installed.variant(experiment.tables.get(policy, {})) if installed else None
