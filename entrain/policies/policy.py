"""The interface of policies: a policy decides when and how fast flows send in live runs.

A policy is one module. Subclass `Policy`, and register an instance under its name in `entrain.policies.OURS`,
or from another distribution through an entry point, as examples/policy does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import JsonValue

from controlplane.topology import Topology
from entrain.policies.reports import Report
from hostbpf.mltcp import Jobs
from machine.record import Record
from machine.toml import Strict
from workloads.jobs import JobSpec

if TYPE_CHECKING:
    from mininet_topos.network import Network

FileRouting = Literal["ecmp", "source", "vclos"]
"""A routing of experiment files: `vclos` is source routing over links of the job's own."""


InSlots = Callable[[float], contextlib.AbstractContextManager[None]]
"""Opens a context in which switches know the slots of this length (ms)."""


@dataclass(frozen=True)
class ExperimentSpec:
    """The part of an experiment that policies check before it runs."""

    routing: tuple[FileRouting, ...]
    controls: tuple[str, ...]
    """The congestion controls in the file."""
    topology: Topology


@dataclass(frozen=True)
class JobOnHosts:
    """A job of a run."""

    name: str
    hosts: tuple[str, ...]
    """The names of its hosts, by rank; none on a cluster, where it gets them later."""
    mark: int
    """The mark of its sockets."""
    tables: Mapping[str, Mapping[str, JsonValue]]
    """By policy with per-job tables: the policy's table, with the job's own keys merged in."""


@dataclass(frozen=True)
class Run:
    """One run, as its policy sees it. The network is up, and no job has started."""

    routing: FileRouting
    control: str | None
    """The jobs' congestion control, or None for the network's."""
    table: Mapping[str, JsonValue]
    """The policy's table, with defaults. `Policy.table.model_validate` turns it back into the model."""
    jobs: tuple[JobOnHosts, ...]
    network: Network
    record: Record
    """Owns everything that the policy creates on the machine."""
    directory: Path
    """The run's directory. Its *.log files are kept with the results."""
    in_slots: InSlots
    """Within this context, switches refuse carriers about slots that are not near the present one.

    The argument is the slots' length in ms.
    """
    mltcp: Jobs | None
    """The machine's MLTCP jobs, or None if no run uses one of entrain's congestion controls."""

    def netns(self, host: str) -> str:
        """Return the path of a host's network namespace."""
        return f"/proc/{self.network.net[host].pid}/ns/net"


class Session:
    """A policy during one run. This default does nothing."""

    def job(self, spec: JobSpec) -> JobSpec:
        """Return the specification for a job's workers. Called once per job, before it starts."""
        return spec

    def report(self) -> Report:
        """Return the policy's part of the results. Called once, when all jobs have ended."""
        return Report()


class Working(Session):
    """A session with a thread of its own. Subclasses define `work`."""

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.work, name=name)

    def work(self) -> None:
        """Do the session's work until `self._stop` is set."""
        raise NotImplementedError

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let the thread work in this context, or until `end` is called."""
        self._thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """End the thread. A second call does nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


class Policy:
    """Decides when and how fast flows send. This default leaves it to TCP."""

    label: ClassVar[str]
    """The policy's name in plots."""
    table: ClassVar[type[Strict] | None] = None
    """The model of its table `[NAME]` in experiment files, or None if it has none."""
    per_job: ClassVar[bool] = False
    """Whether a job's table `[job.NAME]` overrides single keys."""
    on_clusters: ClassVar[bool] = False
    """Whether it can run where jobs come and go, and nobody knows their hosts before they start."""
    baseline: ClassVar[bool] = False
    """Whether it is plain TCP, with which others are compared."""

    def check(self, experiment: ExperimentSpec, table: Any) -> None:
        """Raise BadInput, naming the key, if the policy cannot run `experiment`.

        `table` is the policy's table, if it has one.
        """

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """Return the congestion controls to run with, one after the other. None stands for the network's.

        `chosen` are the file's.
        """
        return tuple(chosen) or (None,)

    def series(self, control: str | None) -> str | None:
        """Return the name of its runs under `control` in plots and tables, or None for "NAME CONTROL"."""
        return None

    def variant(self, table: Mapping[str, JsonValue]) -> str | None:
        """Return what names a run beside the policy's name, such as the scheduler that `table` chooses.

        `table` is the policy's, perhaps of another version. None: nothing but the default.
        """
        return None

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Apply the policy during a run.

        `run.record` must own its processes. `run.network.watching` ends the run when one of them dies.
        """
        yield Session()
