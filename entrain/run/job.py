"""A job on a network that is up: its file, and the specification that its ranks read.

    [job]
    name = "vgg"
    model = "vgg16"
    scale = 200
    hosts = ["h1", "h3", "h2"]
    iterations = 5

The keys are those of `[[job]]` in experiments.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrain.experiment import FIRST_PORT, JobTable, check_unique, in_turn
from machine.errors import BadInput
from machine.toml import Strict, check, read_toml
from workloads.jobs import JobSpec, parse_job

PORTS = 500
"""Jobs of different names use one of so many ports, so that several can run on one host."""


class JobFile(Strict):
    """A whole job file."""

    job: JobTable


@dataclass(frozen=True)
class Place:
    """A host of the network that is up."""

    name: str
    address: str
    switch: str
    process_id: int


def job_on(path: Path, places: Sequence[Place], root: Path) -> JobSpec:
    """Return the job in the file `path`, on hosts of a network. Its directory is that of its name in `root`.

    Raises BadInput, which names the file, the key and the remedy.
    """
    table = check(JobFile, read_toml(path), str(path)).job
    by_name = {place.name: place for place in places}
    chosen = [by_name[name] for name in _names(f"{path}: [job]", table, places, by_name)]
    return parse_job(
        {
            **table.model_dump(exclude={"hosts", "count"}, exclude_defaults=True),
            "name": table.name,
            "hosts": [place.address for place in chosen],
            "netns": [f"/proc/{place.process_id}/ns/net" for place in chosen],
            "port_base": FIRST_PORT + zlib.crc32(table.name.encode()) % PORTS,
            "rendezvous": str(root / table.name),
            "output": str(root / table.name / "records"),
        },
        f"{path}: [job]",
    )


def _names(
    where: str, table: JobTable, places: Iterable[Place], known: Mapping[str, object]
) -> Sequence[str]:
    if (table.hosts is None) == (table.count is None):
        raise BadInput(f"{where}, hosts: give either hosts (their names) or count, not both")
    if table.hosts is not None:
        for name in table.hosts:
            if name not in known:
                raise BadInput(f"{where}, hosts: there is no host {name!r}; there is {', '.join(known)}")
        check_unique(f"{where}, hosts", table.hosts)
        return table.hosts
    columns: dict[str, list[str]] = {}
    for place in places:
        columns.setdefault(place.switch, []).append(place.name)
    names = in_turn(columns.values())
    if (count := table.count or 0) > len(names):
        raise BadInput(f"{where}, count: {count} hosts requested, but there are {len(names)}; use fewer")
    return names[:count]
