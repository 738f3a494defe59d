"""Read and summarize the ranks' records.

Each rank writes `NAME-rankR.jsonl`, one JSON object per line: a `clock` at the start, for each iteration an
`iteration` and a `flow` per transfer received, and an `end`. Times are CLOCK_MONOTONIC in ns; `clock` holds
the offset to CLOCK_REALTIME.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from machine.errors import BadInput
from machine.interval import percentile


@dataclass(frozen=True)
class Clock:
    """A rank's start. A record's time plus `realtime_offset_ns` is CLOCK_REALTIME."""

    job: str
    rank: int
    ranks: int
    collective: str
    iterations: int
    monotonic_ns: int
    realtime_offset_ns: int


@dataclass(frozen=True)
class Iteration:
    """One iteration of one rank: computation, then communication. `bytes` is what the rank sent. `marks` and
    `retransmitted` are how many of its segments were acknowledged with an ECN mark, and sent again, since
    the record before; `timeouts` is how often its retransmission timers expired, None if not known. `loss` is
    the trained model's loss, None without training. `pace` says how its start followed the job's pace (a
    `schedulers.cassini.pace.Kind` in lower case), with the drift found and the time waited; None without one.
    """

    job: str
    rank: int
    iteration: int
    start_ns: int
    compute_end_ns: int
    end_ns: int
    bytes: int
    loss: float | None = None
    marks: int = 0
    pace: str | None = None
    drift_ns: int = 0
    waited_ns: int = 0
    retransmitted: int = 0
    timeouts: int | None = None


@dataclass(frozen=True)
class TransferRecord:
    """One transfer of one step: from the sender's first call to the receiver's last byte."""

    job: str
    iteration: int
    step: int
    src_rank: int
    dst_rank: int
    src_ip: str
    src_port: int
    dst_ip: str
    dst_port: int
    bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class End:
    """A rank's end: its error if it failed, and its total CPU time."""

    job: str
    rank: int
    error: str | None
    cpu_s: float


@dataclass(frozen=True)
class Records:
    """Records of any number of jobs and ranks."""

    clocks: tuple[Clock, ...]
    iterations: tuple[Iteration, ...]
    flows: tuple[TransferRecord, ...]
    ends: tuple[End, ...]


@dataclass(frozen=True)
class Summary:
    """Summary of one job: iterations completed by all ranks (ms), completion time (s) and bytes sent.

    An iteration's time runs from the earliest rank's start to the latest rank's end. `jct_s` runs from the
    earliest start of the first iteration to the latest end of the last; it is None unless all ranks completed
    all iterations. `marks` counts the segments that met an ECN mark, and `iteration_marks` those of each
    iteration; `retransmitted` counts those that were sent again, and `timeouts` how often retransmission
    timers expired, None if a kernel did not count that. `error` is the error that most ranks report. `losses`
    holds every rank's loss, per iteration, if a model is trained.
    """

    job: str
    collective: str
    ranks: int
    iterations: int
    iteration_ms: tuple[float, ...]
    communication_ms: tuple[float, ...]
    jct_s: float | None
    bytes: int
    cpu_s: float
    error: str | None
    losses: tuple[tuple[float, ...], ...] = ()
    marks: int = 0
    iteration_marks: tuple[int, ...] = ()
    retransmitted: int = 0
    timeouts: int | None = None

    @property
    def loss_digest(self) -> str | None:
        """Digest of the losses, equal for runs with bit-identical losses on every rank; None without
        training."""
        return hashlib.sha256(repr(self.losses).encode()).hexdigest()[:16] if self.losses else None

    @property
    def marks_per_iteration(self) -> float | None:
        """Mean number of marked segments in an iteration; None if no iteration is complete."""
        return self.marks / len(self.iteration_ms) if self.iteration_ms else None

    @property
    def iteration_ms_mean(self) -> float | None:
        """Mean iteration time; None if no iteration is complete."""
        return float(np.mean(self.iteration_ms)) if self.iteration_ms else None

    @property
    def iteration_ms_p99(self) -> float | None:
        """99th percentile of iteration times by linear interpolation; None of fewer than 100 iterations."""
        return percentile(self.iteration_ms, 99)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON data."""
        return {
            "name": self.job,
            "collective": self.collective,
            "ranks": self.ranks,
            "iterations": len(self.iteration_ms),
            "iteration_ms_mean": self.iteration_ms_mean,
            "iteration_ms_p99": self.iteration_ms_p99,
            "communication_ms_mean": float(np.mean(self.communication_ms)) if self.communication_ms else None,
            "jct_s": self.jct_s,
            "bytes": self.bytes,
            "marks_per_iteration": self.marks_per_iteration,
            "retransmitted": self.retransmitted,
            "timeouts": self.timeouts,
            "cpu_s": self.cpu_s,
            "error": self.error,
            **({"loss": [float(np.mean(each)) for each in self.losses]} if self.losses else {}),
            **({"loss_digest": self.loss_digest} if self.losses else {}),
        }


R = TypeVar("R", Clock, Iteration, TransferRecord, End)


def read_records(where: Path) -> Records:
    """Read all records in a directory or in one file.

    A truncated last line, as left by `kill -9`, is ignored. Raises BadInput if a line is not a record (it
    names file and line), or if there are no records.
    """
    paths = sorted(where.glob("*.jsonl")) if where.is_dir() else [where]
    found: dict[str, list[Any]] = {"clock": [], "iteration": [], "flow": [], "end": []}
    types: dict[str, type[Any]] = {"clock": Clock, "iteration": Iteration, "flow": TransferRecord, "end": End}
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        for number, text in enumerate(lines, 1):
            try:
                data = json.loads(text)
                kind = data.pop("kind")
                found[kind].append(types[kind](**data))
            except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
                if number == len(lines) and isinstance(error, json.JSONDecodeError):
                    continue
                raise BadInput(f"{path}, line {number}: not a record of a job: {text[:80]!r}") from error
    if not any(found.values()):
        raise BadInput(f"{where}: has no records (*.jsonl)")
    return Records(*(tuple(found[kind]) for kind in types))


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None if one of them is not known."""
    found = 0
    for count in counts:
        if count is None:
            return None
        found += count
    return found


def summarize(records: Records) -> list[Summary]:
    """Return one summary per job, sorted by name."""
    clocks: dict[str, list[Clock]] = _by_job(records.clocks)
    iterations = _by_job(records.iterations)
    ends = _by_job(records.ends)
    return [_summary(job, clocks[job], iterations.get(job, []), ends.get(job, [])) for job in sorted(clocks)]


def _summary(job: str, clocks: list[Clock], iterations: list[Iteration], ends: list[End]) -> Summary:
    first = clocks[0]
    by_number: dict[int, list[Iteration]] = defaultdict(list)
    for record in iterations:
        by_number[record.iteration].append(record)
    complete = [by_number[number] for number in sorted(by_number) if len(by_number[number]) == first.ranks]
    done = len(complete) == first.iterations
    errors = [end.error for end in ends if end.error]
    if not errors and len(ends) < first.ranks:
        errors = [
            f"{first.ranks - len(ends)} of {first.ranks} ranks have no end record: they were killed, or "
            f"still run"
        ]
    return Summary(
        job=job,
        collective=first.collective,
        ranks=first.ranks,
        iterations=first.iterations,
        iteration_ms=tuple(
            (max(r.end_ns for r in rs) - min(r.start_ns for r in rs)) / 1e6 for rs in complete
        ),
        communication_ms=tuple(
            (max(r.end_ns for r in rs) - min(r.compute_end_ns for r in rs)) / 1e6 for rs in complete
        ),
        jct_s=(max(r.end_ns for r in complete[-1]) - min(r.start_ns for r in complete[0])) / 1e9
        if done
        else None,
        bytes=sum(r.bytes for r in iterations),
        cpu_s=round(sum(end.cpu_s for end in ends), 3),
        error=Counter(errors).most_common(1)[0][0] if errors else None,
        losses=_losses(complete),
        marks=sum(r.marks for rs in complete for r in rs),
        retransmitted=sum(r.retransmitted for rs in complete for r in rs),
        timeouts=total(r.timeouts for rs in complete for r in rs),
        iteration_marks=tuple(sum(r.marks for r in rs) for rs in complete),
    )


def _losses(complete: list[list[Iteration]]) -> tuple[tuple[float, ...], ...]:
    rows = (sorted(each, key=lambda record: record.rank) for each in complete)
    losses = tuple(tuple(record.loss for record in row if record.loss is not None) for row in rows)
    return losses if any(losses) else ()


def _by_job(records: Iterable[R]) -> dict[str, list[R]]:
    jobs: dict[str, list[R]] = defaultdict(list)
    for record in records:
        jobs[record.job].append(record)
    return jobs
