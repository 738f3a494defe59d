"""The measurements of live experiments, read from the directories of `entrain run --out`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from entrain.experiment import Experiment
from entrain.policies import is_baseline, mltcp
from entrain.results import files, store
from entrain.results.cluster import Stay
from entrain.results.values import (
    RunResult,
    Settled,
    Summarized,
    converged_at,
    lost_or_marked,
    series_of,
    settled_mean,
    settled_run,
    shifted_means,
)
from entrain.trials.slot_rates import KIND as SLOT_RATES
from entrain.trials.slot_rates import TrialResult
from machine.errors import BadInput


@dataclass(frozen=True)
class Live:
    """The measurements of one experiment."""

    name: str
    runs: Mapping[str, Sequence[RunResult]] = field(default_factory=dict)
    """The runs of all seeds, by series (`values.series_of`); on a cluster, by strategy."""
    trials: Sequence[TrialResult] = ()
    """The trials of an experiment of kind slot-rates."""
    experiment: Experiment | None = None
    """The experiment, unless it is of kind slot-rates."""

    @property
    def best_tcp(self) -> str | None:
        """The plain TCP congestion control with the shortest mean completion time."""
        plain = [name for name, runs in self.runs.items() if is_baseline(runs[0].combination.policy)]
        return min(plain, key=lambda name: fmean(self.jct_s(name)), default=None)

    @property
    def models(self) -> list[str]:
        """The models of the jobs, which their names begin with."""
        jobs = [job for runs in self.runs.values() for run in runs[:1] for job in run.jobs]
        return list(dict.fromkeys(job.name.partition("-")[0] for job in jobs))

    def jct_s(self, name: str) -> list[float]:
        """Return the completion times of all jobs."""
        return [time for run in self.runs[name] for time in run.completion.jct_s]

    def mean_jct_s(self, name: str) -> dict[int, float]:
        """Return the mean completion time of each run's jobs, by seed."""
        return {run.combination.seed: run.completion.mean for run in self.runs[name]}

    def stays(self, name: str) -> list[Stay]:
        """Return the stays of all jobs on a cluster under strategy `name`."""
        return [stay for run in self.runs[name] if run.stays for stay in run.stays.stays]

    def iteration_ms(self, name: str, model: str = "") -> dict[int, float]:
        """Return the mean over the jobs of a model of their mean iteration times, by seed."""
        return {
            run.combination.seed: fmean(job.mean_ms for job in run.jobs if job.name.startswith(model))
            for run in self.runs[name]
        }

    def settled(self, name: str) -> Settled | None:
        """Return the settled figures over all seeds."""
        return settled_mean(map(settled_run, self.runs[name]))

    def converged_at(self, name: str) -> float | None:
        """Return the median of the iterations at which the converged runs converged."""
        known = [at for at in map(converged_at, self.runs[name]) if at is not None]
        return median(known) if known else None

    def converged(self, name: str) -> int:
        """Return how many runs converged."""
        return sum(at is not None for at in Summarized(tuple(self.runs[name])).converged_at)

    def plain_of(self, name: str) -> str | None:
        """Return the plain control of the MLTCP variant `name`, or None if it is none or was not run."""
        combination = self.runs[name][0].combination
        plain = name.removeprefix("mltcp_")
        return plain if combination.policy == mltcp.NAME and plain in self.runs else None

    def lost_or_marked(self, name: str) -> float | None:
        """Return the segments lost or marked in an iteration, or None if a run has no samples."""
        known = [value for value in map(lost_or_marked, self.runs[name]) if value is not None]
        return fmean(known) if len(known) == len(self.runs[name]) else None

    def shifted(self) -> list[tuple[str, str]]:
        """Return the congestion controls that were run without Cassini and with it: both names of each."""
        both = ((name, f"cassini {name}") for name in self.runs)  # as `Cassini.series` names them
        return [(plain, shifted) for plain, shifted in both if shifted in self.runs]

    def communication_ms(self, name: str) -> dict[str, float]:
        """Return each job's mean communication time; once shifted, if it was."""
        known: dict[str, list[float]] = {}
        for run in self.runs[name]:
            means = {job.name: fmean(job.summary.communication_ms) for job in run.jobs}
            for job, mean in (means | shifted_means(run, lambda job: job.communication_ms)).items():
                known.setdefault(job, []).append(mean)
        return {job: fmean(values) for job, values in known.items()}


def load(directories: Sequence[Path]) -> list[Live]:
    """Return the measurements of all experiments in `directories` or their subdirectories.

    Results of one experiment may be in several directories. Raises BadInput if the experiment was run twice
    with the same congestion control or strategy.
    """
    lives: dict[str, Live] = {}
    origin: dict[tuple[str, str], Path] = {}

    def once(experiment: str, name: str, directory: Path) -> None:
        if origin.setdefault((experiment, name), directory) != directory:
            both = f"{origin[experiment, name]} and {directory} both hold"
            raise BadInput(f"{both} results of {experiment} with {name}: remove one")

    for directory in store.found(directories):
        if store.kind_of(directory) == SLOT_RATES.name:
            rates = store.read(SLOT_RATES, directory)
            name = rates.experiment.name
            once(name, "its trials", directory)
            lives[name] = Live(name, trials=rates.runs)
            continue
        held = store.read(files.NETWORK, directory)
        name = held.experiment.name
        runs = dict(lives[name].runs) if name in lives else {}
        for run in held.runs:
            key = series_of(held.experiment, run.combination)
            once(name, key, directory)
            runs[key] = [*runs.get(key, ()), run]
        lives[name] = Live(name, runs, experiment=held.experiment)
    return [live for live in lives.values() if live.runs or live.trials]
