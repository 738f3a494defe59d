"""Policies `slots`, `slots-15`, `slots-60` and `slots-120`: the slot scheduler (flow-scheduling paper), with
an agent on every host. They differ in the defaults of their tables, so that one experiment can compare them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import grpc
import psutil
from pydantic import Field, JsonValue

from controlplane.routing import fixed_path
from entrain.policies.policy import ExperimentSpec, Policy, Run, Session
from entrain.policies.reports import HostReport, Report
from hostbpf.agent.agent import Loads, Scheduling
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from hostbpf.scheduling.thread import slot_schedulers
from machine.errors import BadInput
from machine.patience import patience
from machine.tls import open_channel
from machine.toml import Strict, one_of
from mininet_topos.agents import agents
from mininet_topos.emulated_switches import emulated_switches
from schedulers.slots.host import BEGIN, SMALLEST_FIRST, SPREAD, warm_up
from workloads.jobs import JobSpec

TIMEOUT_S = patience(5.0)
"""How long an agent may take to answer."""
CONTROL = "slot_cubic"
"""The congestion control that follows schedules."""


Length = Annotated[float, Field(ge=5, le=10_000, allow_inf_nan=False, strict=False)]
Part = Annotated[float, Field(ge=0, le=SPREAD, allow_inf_nan=False, strict=False)]


class SlotsTable(Strict):
    """The `[slots]` table."""

    slot_ms: Length = 60.0
    loads: Loads = "inband"
    scheduler: Annotated[str, one_of(slot_schedulers)] = SMALLEST_FIRST
    turns_from: Part = BEGIN


class ShortSlotsTable(SlotsTable):
    """The `[slots-15]` table: the same keys, other defaults."""

    slot_ms: Length = 15.0


class LongSlotsTable(SlotsTable):
    """The `[slots-120]` table: the same keys, other defaults."""

    slot_ms: Length = 120.0


class Seen(NamedTuple):
    """An agent's status, its CPU time so far, and the time of the observation."""

    status: Any
    cpu_s: float
    at_s: float


class Schedulers(Session):
    """The agents of a run, by host, and the directory to which jobs publish their progress."""

    def __init__(self, addresses: Mapping[str, str], link_mbps: Mapping[str, float], progress: Path) -> None:
        self._addresses = addresses
        self._progress = progress
        self._link_mbps = link_mbps
        self._before = {host: look(address) for host, address in addresses.items()}

    def job(self, spec: JobSpec) -> JobSpec:
        """Let the job publish its progress."""
        return spec.model_copy(update={"progress": self._progress})

    def report(self) -> Report:
        """Return what each agent has done since the session began."""
        return Report(
            scheduling=tuple(
                _report(host, self._link_mbps[host], self._before[host], look(address))
                for host, address in self._addresses.items()
            )
        )


def look(address: str) -> Seen | str:
    """Return the status of the agent at `address`, or the reason why it does not answer."""
    with open_channel(grpc, address) as channel:
        try:
            status = HostStub(channel).GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)
            spent = psutil.Process(status.process_id).cpu_times()
        except grpc.RpcError as error:
            return str(error.details() if isinstance(error, grpc.Call) else error)
        except psutil.NoSuchProcess as error:
            return str(error)
    return Seen(status, spent.user + spent.system, time.monotonic())


def _report(host: str, link_mbps: float, before: Seen | str, after: Seen | str) -> HostReport:
    if isinstance(before, str) or isinstance(after, str):
        reason = before if isinstance(before, str) else after
        return HostReport(host, (f"the agent does not answer: {reason}",))
    status = after.status
    return HostReport(
        host,
        tuple(status.scheduling.events),
        dict(status.scheduling.counts),
        dict(status.carriers),
        tuple(status.scheduling.negotiation_ms),
        tuple(status.scheduling.decision_ms),
        after.at_s - before.at_s,
        after.cpu_s - before.cpu_s,
        status.carrier_bytes - before.status.carrier_bytes,
        link_mbps,
        {peer: (skew.low_ms, skew.high_ms) for peer, skew in status.skews.items()},
        tuple(status.scheduling.late_ms),
        dict(status.scheduling.link_s),
    )


class Slots(Policy):
    """An agent on every host schedules the transfers that the jobs publish."""

    table = SlotsTable
    on_clusters = True

    def __init__(self, name: str, label: str, table: type[SlotsTable]) -> None:
        self._name = name
        self.label, self.table = label, table  # type: ignore[misc]  # one class for several policies

    def check(self, experiment: ExperimentSpec, table: SlotsTable) -> None:
        """Require fixed paths for emulated switches: they must know which flows pass them."""
        if table.loads != "emulated":
            return
        try:
            for routing in experiment.routing:
                if routing == "vclos":
                    raise BadInput("not with routing vclos, whose paths are the jobs' own")
                for source, destination in itertools.permutations(experiment.topology.hosts, 2):
                    fixed_path(experiment.topology, routing, source, destination)
        except BadInput as error:
            raise BadInput(f'[{self._name}], loads = "emulated": {error}') from None

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """Return the one control that follows schedules."""
        return (CONTROL,)

    def series(self, control: str | None) -> str:
        """Return the name of the only series."""
        return self._name

    def variant(self, table: Mapping[str, JsonValue]) -> str | None:
        """Return the scheduler's name, unless it is the default. It need not be installed any longer."""
        scheduler = table.get("scheduler", SMALLEST_FIRST)
        return None if scheduler == SMALLEST_FIRST else str(scheduler)

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Run an agent on every host. Jobs publish their progress in the run's directory."""
        table = self.table.model_validate(run.table)
        progress = run.directory / "progress"
        progress.mkdir()
        warm_up()  # compile once here instead of in all agents at the same time
        scheduling = Scheduling(table.loads, scheduler=table.scheduler, turns_from=table.turns_from)
        with contextlib.ExitStack() as stack:
            stack.enter_context(run.in_slots(table.slot_ms))
            paths: Mapping[str, Path] = {}
            if table.loads == "emulated" and run.routing != "vclos":  # refused by check
                emulated = emulated_switches(
                    run.network, run.routing, run.record, run.directory, slot_ms=table.slot_ms
                )
                paths = stack.enter_context(emulated)
            asking = agents(
                run.network,
                run.record,
                run.directory,
                slot_ms=table.slot_ms,
                scheduling=scheduling,
                paths=paths,
                progress=progress,
            )
            addresses = stack.enter_context(asking)
            yield Schedulers(addresses, run.network.topology.host_rates_mbps, progress)
