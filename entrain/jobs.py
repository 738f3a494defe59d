"""Job files of `entrain submit`, and how the commands show jobs and placements.

    [job]
    name = "bert"
    gpus = 8
    pattern = "ring"
    duration_s = 600

docs/vclos.md describes each key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from google.protobuf.json_format import MessageToDict
from pydantic import Field
from rich.table import Table

from machine.terminal import duration, plain_table
from machine.toml import NAME, Strict, check, one_of, read_toml
from workloads.collectives import collectives

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]


class JobTable(Strict):
    """The `[job]` table. `deadline_s` counts from when the job is submitted."""

    name: Annotated[str, NAME] | None = None
    gpus: Annotated[int, Field(ge=1)]
    pattern: Annotated[str, one_of(collectives)] = "ring"
    duration_s: Seconds | None = None
    deadline_s: Seconds | None = None


class JobFile(Strict):
    """A whole job file."""

    job: JobTable


def read_job(path: Path) -> dict[str, Any]:
    """Return a job file's keys, those that are given; the name is the file's if it has none.

    Raises BadInput that names file, key and remedy.
    """
    table = check(JobFile, read_toml(path), str(path)).job
    if table.name is None:
        table = check(JobTable, {**table.model_dump(), "name": path.stem}, f"{path}: [job]")
    return table.model_dump(exclude_none=True)


def document(message: Any) -> dict[str, Any]:
    """Return what `--json` prints of a message: every key of its kind, None where there is no value."""
    shown = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    missing = {field.name: None for field in message.DESCRIPTOR.fields if field.name not in shown}
    return {**shown, **missing}


def jobs_table(jobs: Iterable[Any], now: float) -> Table:
    """Return a table with a line for each job: its state, what it has, and why it waits."""
    table = plain_table("job", "state", "GPUs", "time", text=2)
    table.add_column("hosts, or what it waits for", overflow="fold")
    for job in jobs:
        table.add_row(job.name, job.phase, str(job.gpus), duration(since(job, now)), has_or_waits(job))
    return table


def has_or_waits(job: Any) -> str:
    """Return the hosts of a job in few words, or why it waits."""
    if job.phase == "waiting":
        reason = waits_for(job.waiting) if job.HasField("waiting") else "its turn"
        return f"{reason} ({job.problem})" if job.problem else reason
    hosts = ranges(job.placement.hosts) or "-"
    return f"{hosts} ({job.problem})" if job.phase in ("admitting", "leaving") and job.problem else hosts


def waits_for(wait: Any) -> str:
    """Return what a job waits for, in words."""
    if wait.cause == "queue":
        return f"behind {wait.behind}"
    if wait.cause == "failure":
        return "something that has failed"
    if wait.cause == "share":
        return "other jobs of its submitter, who has no more GPUs"
    if wait.cause == "gpus":
        return "GPUs: too few are free"
    return "network: GPUs would suffice, but no free links join them"


def placement_lines(placement: Any, changed: int) -> list[tuple[str, str]]:
    """Return a placement as pairs of a word and its values."""
    shape = f"{placement.virtual_leaves} x {placement.virtual_spines}"
    links = [
        f"{placement.leaf_names[placement.leaves[:].index(link.leaf)]}-"
        f"{placement.spine_names[placement.spines[:].index(link.spine)]}:{link.number}"
        for link in placement.links
    ]
    circuits = [f"{each.a.name}={each.b.name}" for each in placement.circuits]
    lines = [
        ("hosts", ranges(placement.hosts)),
        ("GPUs", ranges(map(str, placement.gpus))),
        ("leaves", ranges(placement.leaf_names)),
        ("spines", ranges(placement.spine_names) or "none"),
        ("links", " ".join(links) or "none of its own"),
    ]
    if placement.virtual_spines:
        lines.insert(2, ("virtual Clos", f"{shape} (leaves x spines)"))
    if circuits:
        lines.append(("circuits", f"{' '.join(circuits)} ({changed} to be made)"))
    return lines


def since(job: Any, now: float) -> float:
    """Return for how long a job waits or waited, if it has not begun; else how long it runs or ran."""
    begin: float = job.start_s if job.HasField("start_s") else job.arrival_s
    end: float = job.end_s if job.HasField("end_s") else now
    return max(end - begin, 0.0)


def ranges(names: Iterable[str]) -> str:
    """Return names with runs of numbers joined: `h1-h4 h7`."""
    runs: list[tuple[str, int, int, str, str]] = []  # stem, first, last, first name, last name
    for name in names:
        found = re.fullmatch(r"(.*?)(\d+)", name)
        stem, number = (found[1], int(found[2])) if found else (name, -1)
        if runs and found and (runs[-1][0], runs[-1][2] + 1) == (stem, number):
            runs[-1] = (stem, runs[-1][1], number, runs[-1][3], name)
        else:
            runs.append((stem, number, number, name, name))
    return " ".join(one if one == other else f"{one}-{other}" for *_, one, other in runs)
