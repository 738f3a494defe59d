"""Compare the results of two experiments: what differs in their settings, and what in their runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic import JsonValue, ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table

from entrain.experiment import Combination, Experiment
from entrain.policies import policies
from entrain.results import files
from entrain.results.store import Store, differences, kind_of, read
from entrain.results.tables import label
from entrain.results.values import RunResult
from machine.errors import BadInput
from machine.interval import Interval, interval, relative
from machine.origin import listed

Held = Store[Experiment, RunResult]
Tables = Mapping[str, Mapping[str, JsonValue]]

ALL_JOBS = "all jobs"


def pair(directories: Sequence[Path]) -> tuple[Held, Held] | None:
    """Return the two experiments to compare, or None unless `directories` are two of jobs in a network.

    Raises BadInput if one cannot be read.
    """
    if len(directories) != 2 or any(kind_of(each) != files.NETWORK.name for each in directories):
        return None
    first, second = (read(files.NETWORK, each) for each in directories)
    return (first, second) if first.runs and second.runs else None


@dataclass(frozen=True)
class Change:
    """One measure of the runs of one combination, in two experiments."""

    run: str
    job: str
    measure: str
    first: Interval
    second: Interval
    change: Interval
    """From the first to the second, as a fraction of the first. With the same seeds in both, from their
    differences by seed, so that what a seed does to both cancels out."""

    @property
    def verdict(self) -> str:
        """Say what the change means: shorter, longer, or nothing that the seeds' spread allows to say."""
        if self.change.half is None:
            return "one seed"
        if abs(self.change.mean) <= self.change.half:
            return "within the spread"
        return "shorter" if self.change.mean < 0 else "longer"


def settings(first: Held, second: Held) -> list[tuple[str, str, str]]:
    """Return the keys in which two experiments differ, and both values as JSON.

    A policy's key that the version of one of them did not have counts with its default.
    """
    there, here = (
        files.NETWORK.experiment.dump_python(_completed(each.experiment), mode="json")
        for each in (first, second)
    )
    found = [(where, json.dumps(a), json.dumps(b)) for where, a, b in differences(there, here)]
    before, after = (listed(run.origin for run in each.runs) for each in (first, second))
    if before != after:
        found.append(("(measured)", before, after))
    return found


def _completed(experiment: Experiment) -> Experiment:
    """Return an experiment with all keys that its policies' tables have in this version."""
    jobs = tuple(replace(job, tables=_with_defaults(job.tables)) for job in experiment.jobs)
    unused: Tables = {name: {} for name, policy in policies().items() if policy.table}
    return replace(experiment, jobs=jobs, tables=_with_defaults({**unused, **experiment.tables}))


def _with_defaults(tables: Tables) -> Tables:
    """Return policies' tables with their defaults. One that this version does not know stays as it is."""
    known = policies()
    found = dict(tables)
    for name, table in tables.items():
        if name in known and (model := known[name].table):
            with contextlib.suppress(ValidationError):
                found[name] = model.model_validate(table).model_dump(mode="json")
    return found


def compare(first: Held, second: Held) -> list[Change]:
    """Compare the runs that both experiments have. Raises BadInput if they have none in common."""
    ours, theirs = _by_combination(first.runs), _by_combination(second.runs)
    common = [which for which in ours if which in theirs]
    if not common:
        raise BadInput(
            f"{first.directory} and {second.directory}: no run in common (routing, policy, congestion "
            f"control and load), so there is nothing to compare: {_named(first)}; {_named(second)}"
        )
    shown = [run for which in common for run in ours[which].values()]
    return [
        each
        for which in common
        for each in _changes(_label(next(iter(ours[which].values())), shown), ours[which], theirs[which])
    ]


def table(changes: Sequence[Change]) -> Table:
    """Return a table with one row per change."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "job", "measure"):
        result.add_column(heading, overflow="fold")
    for heading in ("first", "second", "change"):
        result.add_column(heading, justify="right")
    result.add_column("meaning")
    before = None
    for each in changes:
        result.add_row(
            each.run if each.run != before else "",
            each.job,
            each.measure,
            each.first.show(),
            each.second.show(),
            each.change.percent(),
            each.verdict,
        )
        before = each.run
    return result


LEGEND = """± half of the 95 % confidence interval over seeds. within the spread: the seeds
do not tell whether anything has changed"""


def settings_table(found: Sequence[tuple[str, str, str]]) -> Table:
    """Return a table of the settings that differ."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("setting", "first", "second"):
        result.add_column(heading, overflow="fold")
    for row in found:
        result.add_row(*row)
    return result


def _by_combination(runs: Sequence[RunResult]) -> dict[Combination, dict[int, RunResult]]:
    """Return runs by what they run, without the seed, and by seed."""
    found: dict[Combination, dict[int, RunResult]] = {}
    for run in runs:
        found.setdefault(replace(run.combination, seed=0), {})[run.combination.seed] = run
    return found


def _label(run: RunResult, runs: Sequence[RunResult]) -> str:
    """Return what distinguishes a run from others, but for the seed."""
    same = [replace(each, combination=replace(each.combination, seed=0)) for each in (run, *runs)]
    return label(same[0], same)


def _named(held: Held) -> str:
    names = {_label(run, held.runs) for run in held.runs}
    return f"the runs of {held.directory.name or held.directory} are {', '.join(sorted(names)) or 'none'}"


def _changes(run: str, ours: Mapping[int, RunResult], theirs: Mapping[int, RunResult]) -> Iterator[Change]:
    """Yield the changes of one combination, given by seed."""
    before, after = ({seed: _measures(each) for seed, each in runs.items()} for runs in (ours, theirs))
    for key in next(iter(before.values())):
        if all(key in each for each in (*before.values(), *after.values())):
            job, measure = key
            first, second = ({seed: each[key] for seed, each in runs.items()} for runs in (before, after))
            ends = interval(list(first.values())), interval(list(second.values()))
            yield Change(run, job, measure, *ends, relative(first, second))


def _measures(run: RunResult) -> dict[tuple[str, str], float]:
    """Return what is compared of a run, by job and measure."""
    found = {(ALL_JOBS, "completion (s)"): run.completion.mean}
    if run.stays is None:
        found |= {(job.name, "iteration (ms)"): job.mean_ms for job in run.jobs}
    elif run.over_alone:
        found[ALL_JOBS, "iteration / alone"] = fmean(run.over_alone)
    return found
