"""Compare the results of two experiments: what differs in their settings, and what in their runs."""

from __future__ import annotations

import contextlib
import json
import re
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
from entrain.results.names import label
from entrain.results.store import Store, differences, kind_of, read
from entrain.results.values import RunResult
from machine.errors import BadInput
from machine.interval import Interval, interval, relative
from machine.origin import listed
from machine.terminal import plain_table

Held = Store[Experiment, RunResult]
Tables = Mapping[str, Mapping[str, JsonValue]]

ALL_JOBS = "all jobs"
COMPLETION = "mean completion (s)"


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
        if not self.change.clear:
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
    names = [job.name for job in first.experiment.jobs]
    found = [(_key(where, names), json.dumps(a), json.dumps(b)) for where, a, b in differences(there, here)]
    before, after = (listed(run.origin for run in each.runs) for each in (first, second))
    if before != after:
        found.append(("(measured)", before, after))
    return found


def _key(where: str, jobs: Sequence[str]) -> str:
    """Return a key as in the file of the experiment: `job alpha: iterations`."""
    of_job = re.fullmatch(r"jobs\.(\d+)\.(?:spec\.)?(.+)", where)
    return where if of_job is None else f"job {jobs[int(of_job[1]) - 1]}: {of_job[2]}"


def titles(first: Held, second: Held) -> tuple[str, str]:
    """Return the names of the two directories, or their paths if these names are the same."""
    names = first.directory.name, second.directory.name
    return names if names[0] != names[1] else (str(first.directory), str(second.directory))


def remarks(first: Held, second: Held) -> list[str]:
    """Say what cannot be compared."""
    counts = [{job.name: job.spec.iterations for job in held.experiment.jobs} for held in (first, second)]
    differing = [name for name, count in counts[0].items() if counts[1].get(name, count) != count]
    if not differing:
        return []
    words = ", ".join(f"{name} {counts[0][name]} and {counts[1][name]}" for name in differing)
    return [f"completion times are not compared, because the numbers of iterations differ: {words}"]


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
    unlike = bool(remarks(first, second))
    return [
        change
        for which in common
        for change in _changes(
            _label(first.experiment, next(iter(ours[which].values())), shown), ours[which], theirs[which]
        )
        if not (unlike and change.measure == COMPLETION)
    ]


def table(changes: Sequence[Change], names: tuple[str, str]) -> Table:
    """Return a table with one row per change, between the experiments called `names`."""
    result = plain_table("run", "job", "measure", *names, "change", text=3)
    result.add_column("meaning", no_wrap=True)
    result.padding = (0, 1, 0, 0)
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


def settings_table(found: Sequence[tuple[str, str, str]], names: tuple[str, str]) -> Table:
    """Return a table of the settings that differ."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("setting", *names):
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


def _label(experiment: Experiment, run: RunResult, runs: Sequence[RunResult]) -> str:
    """Return what distinguishes a run from others, but for the seed."""
    same = [replace(each, combination=replace(each.combination, seed=0)) for each in (run, *runs)]
    return label(experiment, same[0], same)


def _named(held: Held) -> str:
    names = {_label(held.experiment, run, held.runs) for run in held.runs}
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
    found = {(ALL_JOBS, COMPLETION): run.completion.mean}
    if run.stays is None:
        found |= {(job.name, "iteration (ms)"): job.mean_ms for job in run.jobs}
    elif run.over_alone:
        found[ALL_JOBS, "iteration / alone"] = fmean(run.over_alone)
    return found
