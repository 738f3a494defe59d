"""What a policy is: what decides when and how fast flows send, in live runs.

A policy is one module: subclass `Policy`, and register an instance under its name, here in
`entrain.policies.OURS` or from outside by an entry point. docs/experiments.md has an example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from controlplane.routing import Routing
from controlplane.topology import Topology
from entrain.policies.reports import Report
from hostbpf.mltcp import Jobs
from machine.record import Record
from machine.toml import Strict
from mininet_topos.network import Network
from workloads.jobs import JobSpec


@dataclass(frozen=True)
class Plan:
    """What an experiment will run, as far as policies may refuse it."""

    routing: tuple[Routing, ...]
    controls: tuple[str, ...]
    """The congestion controls that the file lists."""
    topology: Topology


@dataclass(frozen=True)
class JobOnHosts:
    """A job of a run: the names of its hosts by rank, its socket mark, and its own `[job.NAME]` table, merged
    into the policy's."""

    name: str
    hosts: tuple[str, ...]
    mark: int
    tables: Mapping[str, Mapping[str, JsonValue]]


@dataclass(frozen=True)
class Run:
    """One run, as its policy sees it: the network is up, and no job has started."""

    routing: Routing
    control: str | None
    """The jobs' congestion control; None: the network's."""
    table: Mapping[str, JsonValue]
    """What the policy's table says, with defaults; `Policy.table.model_validate` makes it the table again."""
    jobs: tuple[JobOnHosts, ...]
    network: Network
    record: Record
    """Owns whatever the policy makes on the machine."""
    directory: Path
    """The run's own; what is written there to *.log is kept with the results."""
    mltcp: Jobs | None
    """The machine's MLTCP jobs; None where no run uses a congestion control of entrain's."""

    def netns(self, host: str) -> str:
        """The network namespace of a host, as a path."""
        return f"/proc/{self.network.net[host].pid}/ns/net"


class Session:
    """A policy during one run. This one does nothing."""

    def job(self, spec: JobSpec) -> JobSpec:
        """What a job's workers are told; called once for each job, before it starts."""
        return spec

    def report(self) -> Report:
        """What the results say of the policy; called once, when all jobs have ended."""
        return Report()


class Policy:
    """What decides when and how fast flows send. This one leaves it to TCP."""

    label: ClassVar[str]
    """What pictures call it."""
    table: ClassVar[type[Strict] | None] = None
    """Its keys in experiment files, in the table of its name; None: it has none."""
    per_job: ClassVar[bool] = False
    """Whether a job's own table of that name, `[job.NAME]`, replaces single keys."""
    baseline: ClassVar[bool] = False
    """Whether others are compared with it: plain TCP."""

    def check(self, plan: Plan, table: Any) -> None:
        """Raise BadInput, with the key, for a plan that it cannot run. `table` is its table, if any."""

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """The congestion controls that it runs with, each in turn; None stands for the network's.

        `chosen` are those of the file.
        """
        return tuple(chosen) or (None,)

    def series(self, control: str | None) -> str | None:
        """What pictures and tables call its runs under `control`; None: both names."""
        return None

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Within, the policy is in force. Processes belong to `run.record`, and `run.network.watching` ends
        the run when one of them dies."""
        yield Session()
