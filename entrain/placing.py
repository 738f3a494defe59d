"""Cluster files and job lists of `entrain place`, and the document that it writes.

    [cluster]
    leaves = 4
    spines = 8
    servers_per_leaf = 2
    gpus_per_server = 4
    ocs = true

docs/placement.md describes each key and column.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from machine.errors import BadInput
from machine.toml import NAME, Strict, check, one_of, read_toml
from schedulers.placement.cluster import Cluster, Placement, Port, Request, State, empty
from schedulers.placement.queue import Job, Outcome, Run, Waiting
from schedulers.placement.strategies import Strategy
from workloads.collectives import collectives
from workloads.models import MODELS
from workloads.strategies import live_strategies, strategies

Positive = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]
Pair = Annotated[tuple[Number, Number], Field(strict=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


def _live(name: str) -> str:
    live = live_strategies()
    if name in strategies() and name not in live:
        raise ValueError(
            f"must be one that a network runs ({', '.join(live)}); others are for `entrain place` and "
            f"`entrain simulate`"
        )
    return name


LiveStrategy = Annotated[str, AfterValidator(_live), one_of(live_strategies)]
"""The name of a strategy that a network can run."""


class ClusterTable(Strict):
    """The `[cluster]` table."""

    leaves: Positive
    spines: Positive
    servers_per_leaf: Positive
    gpus_per_server: Positive
    links_per_pair: Positive = 1
    ocs: bool = False


class FailedTable(Strict):
    """The `[failed]` table: what no job gets. Ports are pairs of a switch and its port."""

    gpus: Annotated[tuple[Number, ...], Field(strict=False)] = ()
    uplinks: Annotated[tuple[Pair, ...], Field(strict=False)] = ()
    spine_ports: Annotated[tuple[Pair, ...], Field(strict=False)] = ()


class ClusterFile(Strict):
    """A whole cluster file."""

    cluster: ClusterTable
    failed: FailedTable = FailedTable()


class JobRow(Strict):
    """A line of a job list."""

    job: Annotated[str, NAME]
    gpus: Annotated[int, Field(ge=1, strict=False)]
    arrival_s: Seconds
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
    pattern: Annotated[str, one_of(collectives)]
    deadline_s: Seconds | None = None
    model: Annotated[str, one_of(lambda: MODELS)] | None = None
    """For `entrain run`, which runs the job: what its iterations compute and send."""


def read_cluster(path: Path, strategy: Strategy) -> State:
    """Return the idle cluster of a file, as the strategy needs it, without what has failed.

    Raises BadInput that names file, key and remedy.
    """
    file = check(ClusterFile, read_toml(path), str(path))
    try:
        cluster = strategy.cluster(Cluster(**file.cluster.model_dump()))
    except ValueError as error:
        raise BadInput(f"{path}: [cluster], {error}") from None
    failed = file.failed
    _within(path, "gpus", [(gpu,) for gpu in failed.gpus], cluster.gpus)
    _within(path, "uplinks", failed.uplinks, cluster.leaves, cluster.uplinks)
    _within(path, "spine_ports", failed.spine_ports, cluster.spines, cluster.spine_ports)
    ports = [Port("leaf", *each) for each in failed.uplinks]
    ports += [Port("spine", *each) for each in failed.spine_ports]
    return empty(cluster).without(gpus=failed.gpus, ports=ports)


def _within(path: Path, key: str, given: Sequence[tuple[int, ...]], *sizes: int) -> None:
    for each in given:
        for number, size in zip(each, sizes, strict=True):
            if number >= size:
                shown = each[0] if len(each) == 1 else list(each)
                raise BadInput(f"{path}: [failed], {key}: {shown} does not exist; count from 0 to {size - 1}")


def read_rows(path: Path) -> list[tuple[int, JobRow]]:
    """Return the lines of a CSV file of jobs, each with its number. Raises BadInput as `read_jobs` does."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            lines = [(reader.line_num, line) for line in reader]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: is not CSV text in UTF-8 ({error})") from error
    if not lines:
        columns = ",".join(name for name, field in JobRow.model_fields.items() if field.is_required())
        raise BadInput(f"{path}: has no jobs; begin with the line {columns} and add a line for each job")
    rows: list[tuple[int, JobRow]] = []
    names: dict[str, int] = {}
    for number, line in lines:
        row = _row(line, f"{path}, line {number}")
        if row.job in names:
            taken = f"{row.job!r} stands in line {names[row.job]} already"
            raise BadInput(f"{path}, line {number}: job: {taken}; give it another name")
        names[row.job] = number
        rows.append((number, row))
    return rows


def read_jobs(path: Path, state: State, strategy: Strategy) -> list[Job]:
    """Return the jobs of a CSV file, each of which can start in `state` when it is alone.

    Raises BadInput that names file, line, column and remedy.
    """
    jobs: list[Job] = []
    refused: dict[tuple[int, str], str | None] = {}
    for line, row in read_rows(path):
        request = Request(row.job, row.gpus, row.pattern)
        key = (request.gpus, request.pattern)
        if key not in refused:
            refused[key] = strategy.refusal(state, request)
        if refused[key]:
            raise BadInput(f"{path}, line {line}: gpus: {refused[key]}")
        jobs.append(Job(request, row.arrival_s, row.duration_s, row.deadline_s))
    return jobs


def _row(line: dict[str | Any, str | Any], source: str) -> JobRow:
    if None in line:
        raise BadInput(f"{source}: has more fields than the first line names; remove {line[None][0]!r}")
    return check(JobRow, {key.strip(): text.strip() for key, text in line.items() if text}, source)


def document(state: State, strategy: Strategy, done: Run) -> dict[str, Any]:
    """Return what `entrain place --json` prints."""
    starts = [outcome.start_s - outcome.job.arrival_s for outcome in done.outcomes]
    return {
        "strategy": strategy.name,
        "locality": strategy.locality,
        "routing": strategy.routing,
        "isolated": strategy.isolated,
        "cluster": asdict(state.cluster),
        "waiting_s_mean": sum(starts) / len(starts),
        "makespan_s": max(outcome.end_s for outcome in done.outcomes),
        "circuits_changed": sum(outcome.changed for outcome in done.outcomes),
        "fragmentation": done.failed_attempts,
        "jobs": [_outcome(outcome) for outcome in done.outcomes],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "job": outcome.placement.job,
        "arrival_s": outcome.job.arrival_s,
        "start_s": outcome.start_s,
        "end_s": outcome.end_s,
        **held(outcome.placement, outcome.changed, outcome.waiting),
    }


def held(placement: Placement, changed: int, waiting: Sequence[Waiting]) -> dict[str, Any]:
    """Return what a document says of a placement, the circuits made for it, and why its job waited."""
    leaves, spines = placement.shape
    return {
        "stage": placement.stage,
        "virtual_leaves": leaves,
        "virtual_spines": spines,
        "gpus": placement.gpus,
        "leaves": sorted(set(placement.leaves)),
        "spines": placement.spines,
        "links": placement.links,
        "circuits": [{"a": a._asdict(), "b": b._asdict()} for a, b in placement.circuits],
        "circuits_changed": changed,
        "waiting": [asdict(interval) for interval in waiting],
    }
