"""Readers of public traces. Each validates its input: an error names file, line, column and remedy.

The formats are those of the published files; `data/` holds one of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from machine.errors import BadInput
from simulation.jobs import Coflow, Job, chain

MB = 2**20
INCLUDED = Path(__file__).resolve().parents[1] / "data"
"""The public data in the repository and in an installation; its NOTICE gives origins and licences."""
MOST_ITERATIONS = 10**8
"""No job in a trace has more. A larger number is a mistake, and would take forever to simulate."""

MOST_PORTS = 10**6
"""Of a coflow trace's fabric. More would take the memory of most machines."""


class Place:
    """A position in a file, for error messages and checked numbers."""

    def __init__(self, path: Path, line: int) -> None:
        self.path = path
        self.line = line

    def error(self, column: str | int, problem: str, remedy: str) -> BadInput:
        """Return the error to raise."""
        return BadInput(f"{self.path}, line {self.line}, column {column}: {problem}; {remedy}")

    def number(self, column: str | int, text: str, *, low: float = 0.0, exclusive: bool = False) -> float:
        """Return `text` as a finite number of at least (or above) `low`."""
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number", "write a decimal number") from None
        if not math.isfinite(value):
            raise self.error(column, f"{text!r} is not finite", "give a real value")
        if value < low or (exclusive and value == low):
            raise self.error(
                column, f"{text} is too small", f"give {'more than' if exclusive else 'at least'} {low:g}"
            )
        return value

    def integer(self, column: str | int, text: str, *, low: int = 0, high: int | None = None) -> int:
        """Return `text` as a whole number from `low` to `high`."""
        try:
            value = int(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a whole number", "write digits only") from None
        if value < low or (high is not None and value > high):
            limit = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise self.error(column, f"{value} is out of range", f"give a number {limit}")
        return value


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as problem:
        raise BadInput(f"{path}: {problem.strerror}; name an existing trace file") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is not text; name a trace file") from None


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[Place, dict[str, str]]]:
    lines = _lines(path)
    reader = csv.DictReader(lines)
    missing = [c for c in columns if c not in (reader.fieldnames or [])]
    if missing:
        raise BadInput(
            f"{path}, line 1: column {missing[0]!r} is missing; the header must have {', '.join(columns)}"
        )
    for row in reader:
        place = Place(path, reader.line_num)
        for column in columns:
            if row[column] is None or row[column] == "":
                raise place.error(column, "the value is missing", f"give all of {', '.join(columns)}")
        if None in row:
            named = len(reader.fieldnames or ())
            raise place.error(named + 1, "there are more values than columns", f"write {named} values")
        yield place, row


@dataclass(frozen=True)
class CoflowTrace:
    """`ports` of the fabric and one job with one coflow per line, in order of arrival."""

    ports: int
    jobs: list[Job]

    @property
    def flows(self) -> int:
        """Total number of flows."""
        return sum(len(t.work.size) for job in self.jobs for t in job.tasks if isinstance(t.work, Coflow))


def read_coflow_benchmark(
    path: Path, *, limit: int | None = None, whole_megabytes: bool = False, epoch_s: float = 0.0
) -> CoflowTrace:
    """Read the file `path` as `parse_coflow_benchmark` does."""
    lines = _lines(path)
    return parse_coflow_benchmark(lines, path, limit=limit, whole_megabytes=whole_megabytes, epoch_s=epoch_s)


def parse_coflow_benchmark(
    lines: Sequence[str],
    path: Path,
    *,
    limit: int | None = None,
    whole_megabytes: bool = False,
    epoch_s: float = 0.0,
) -> CoflowTrace:
    """Parse coflow-benchmark's format (FB2010): each mapper sends an equal part of a reducer's MB (2^20
    bytes). Errors name `path`.

    `limit` keeps only the first coflows. For comparison with CoflowSim, `whole_megabytes` rounds each flow up
    to a whole MB, and `epoch_s` rounds arrivals down to a multiple of it, as CoflowSim does.
    """
    if not lines or len(lines[0].split()) != 2:
        raise BadInput(f"{path}, line 1: the header is missing; write: ports coflows")
    head = Place(path, 1)
    ports = head.integer(1, lines[0].split()[0], low=1, high=MOST_PORTS)
    declared = head.integer(2, lines[0].split()[1], low=1)
    body = [(n, line) for n, line in enumerate(lines[1:], 2) if line.strip()]
    if len(body) != declared:
        raise head.error(
            2, f"{declared} coflows are declared, {len(body)} follow", "correct the header or the lines"
        )
    jobs: list[Job] = []
    seen: set[str] = set()
    last = 0.0
    for n, line in body[:limit]:
        place = Place(path, n)
        fields = line.split()
        position = 0

        def take(what: str, place: Place = place, fields: list[str] = fields) -> tuple[int, str]:
            nonlocal position
            position += 1
            if position > len(fields):
                raise place.error(
                    position, f"{what} is missing", "write: id, ms, mappers, ports, reducers, port:MB"
                )
            return position, fields[position - 1]

        _, ident = take("the id")
        if ident in seen:
            raise place.error(1, f"coflow id {ident} is listed twice", "ids must differ")
        seen.add(ident)
        arrival = place.number(*take("the arrival")) / 1000.0
        if arrival < last:
            raise place.error(
                2, f"arrival {arrival * 1000:g} ms is before the previous one", "sort the lines by arrival"
            )
        last = arrival
        mappers = [
            place.integer(*take("a mapper's port"), high=ports - 1)
            for _ in range(place.integer(*take("mappers"), low=1))
        ]
        sources = np.array(sorted(set(mappers)) if whole_megabytes else mappers)
        megabytes: dict[int, float] = {}
        src, dst, size = [], [], []
        for _ in range(place.integer(*take("reducers"), low=1)):
            column, text = take("a reducer")
            port, colon, amount = text.partition(":")
            if not colon:
                raise place.error(column, f"{text!r} is not a reducer", "write port:MB")
            reducer = place.integer(column, port, high=ports - 1)
            mb = place.number(column, amount, exclusive=True)
            megabytes[reducer] = megabytes.get(reducer, 0.0) + (math.ceil(mb) if whole_megabytes else mb)
            if not whole_megabytes:
                dst.append(np.full(len(sources), reducer))
                size.append(np.full(len(sources), mb * MB / len(sources)))
        if whole_megabytes:
            for reducer, mb in sorted(megabytes.items()):
                dst.append(np.full(len(sources), reducer))
                size.append(np.full(len(sources), math.ceil(mb / len(sources)) * float(MB)))
        if position < len(fields):
            raise place.error(
                position + 1, f"{fields[position]!r} is left over", "write each reducer as port:MB"
            )
        src = [sources] * len(dst)
        if epoch_s:
            arrival = max(0.0, math.ceil(arrival / epoch_s) - 1) * epoch_s
        jobs.append(
            chain(ident, arrival, [Coflow(np.concatenate(src), np.concatenate(dst), np.concatenate(size))])
        )
    return CoflowTrace(ports, jobs)


@dataclass(frozen=True)
class TrainingJob:
    """A line of a cluster trace, with `iterations` and `model` if the trace has them. Errors name `line`."""

    ident: str
    arrival_s: float
    gpus: int
    duration_s: float
    iterations: int = 0
    model: str = ""
    line: int = 0


def _checked(path: Path, read: Iterable[tuple[Place, TrainingJob]]) -> list[TrainingJob]:
    """Return the jobs, whose ids must differ, and whose times must be sorted."""
    jobs: list[TrainingJob] = []
    seen: set[str] = set()
    for place, job in read:
        if job.ident in seen:
            raise place.error("id", f"job id {job.ident} is listed twice", "ids must differ")
        seen.add(job.ident)
        if jobs and job.arrival_s < jobs[-1].arrival_s:
            raise place.error(
                "time", f"{job.arrival_s:g} s is before the previous line", "sort the lines by time"
            )
        jobs.append(job)
    if not jobs:
        raise BadInput(f"{path}: holds no jobs; name a trace with at least one")
    return jobs


def read_tiresias(path: Path) -> list[TrainingJob]:
    """Read the 60-job trace: job_id, num_gpu, submit_time, iterations, model_name, duration, interval."""

    def job(place: Place, row: Mapping[str, str]) -> TrainingJob:
        place.number("interval", row["interval"])
        return TrainingJob(
            row["job_id"],
            place.number("submit_time", row["submit_time"]),
            place.integer("num_gpu", row["num_gpu"], low=1),
            place.number("duration", row["duration"], exclusive=True),
            place.integer("iterations", row["iterations"], low=1, high=MOST_ITERATIONS),
            row["model_name"],
            place.line,
        )

    columns = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")
    return _checked(path, ((place, job(place, row)) for place, row in _rows(path, columns)))


def read_pollux_workload(path: Path) -> list[TrainingJob]:
    """Read a Pollux workload: name, time, application, num_replicas, batch_size; it has no durations (0)."""

    def job(place: Place, row: Mapping[str, str]) -> TrainingJob:
        place.integer("batch_size", row["batch_size"], low=1)
        gpus = place.integer("num_replicas", row["num_replicas"], low=1)
        return TrainingJob(row["name"], place.number("time", row["time"]), gpus, 0.0, 0, row["application"])

    columns = ("name", "time", "application", "num_replicas", "batch_size")
    return _checked(path, ((place, job(place, row)) for place, row in _rows(path, columns)))


@dataclass(frozen=True)
class Measurement:
    """Times (s) of one step of a model, by placement (GPUs per node, e.g. "44") and local batch size."""

    placement: str
    batch_size: int
    step_s: float
    sync_s: float


def read_pollux_placements(path: Path) -> list[Measurement]:
    """Read measured step and synchronisation times: placement, local_bsz, step_time, sync_time."""
    return [
        Measurement(
            row["placement"],
            place.integer("local_bsz", row["local_bsz"], low=1),
            place.number("step_time", row["step_time"], exclusive=True),
            place.number("sync_time", row["sync_time"]),
        )
        for place, row in _rows(path, ("placement", "local_bsz", "step_time", "sync_time"))
    ]


@dataclass(frozen=True)
class Average:
    """The same by numbers of nodes and of GPUs, however these are placed."""

    nodes: int
    gpus: int
    batch_size: int
    step_s: float
    sync_s: float


def read_pollux_scalability(path: Path) -> list[Average]:
    """Read measured times of many nodes: num_nodes, num_replicas, local_bsz, step_time, sync_time."""
    return [
        Average(
            place.integer("num_nodes", row["num_nodes"], low=1),
            place.integer("num_replicas", row["num_replicas"], low=1),
            place.integer("local_bsz", row["local_bsz"], low=1),
            place.number("step_time", row["step_time"], exclusive=True),
            place.number("sync_time", row["sync_time"]),
        )
        for place, row in _rows(path, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
    ]


@dataclass(frozen=True)
class Epoch:
    """An epoch of training with a batch: `progress` until its end (steps of the smallest batch), the squared
    norm of the gradient, and its variance at the smallest batch."""

    batch_size: int
    progress: float
    square: float
    variance: float


def read_pollux_validation(path: Path) -> list[Epoch]:
    """Read the epochs of training with several batches: batch_size, progress, grad_sqr, grad_var."""
    return [
        Epoch(
            place.integer("batch_size", row["batch_size"], low=1),
            place.number("progress", row["progress"], exclusive=True),
            place.number("grad_sqr", row["grad_sqr"]),
            place.number("grad_var", row["grad_var"], exclusive=True),
        )
        for place, row in _rows(path, ("batch_size", "progress", "grad_sqr", "grad_var"))
    ]
