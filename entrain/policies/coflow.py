"""Coflow policies, Parrot and those that it is compared with: a coordinator sets the rates of all flows.

Names and policy objects are the simulator's (`simulation.policies`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import grpc
from pydantic import Field, JsonValue

from entrain.bound import MBPS
from entrain.coordinator import SLOTS, Coflow, CoflowKey, Coordinator, Decider, Seen
from entrain.policies.policy import Policy, Run, Session, Working
from entrain.policies.reports import Report, percentiles
from entrain.policies.slots import CONTROL, look
from entrain.shared_links import crossed, directions
from hostbpf.rpc.agent_pb2_grpc import HostStub
from hostbpf.urgent import urgent
from machine.errors import EntrainError
from machine.tls import open_channel
from machine.toml import Strict
from mininet_topos.agents import agents
from schedulers.slots.host import PAYLOAD
from simulation.policies import coflow_policy
from wire.flow import Flow
from workloads.jobs import JobSpec

COFLOWS = {
    "parrot": "Parrot",
    "parrot-filling": "Parrot, filling",
    "aalo": "Aalo",
    "aalo-factor": "Aalo, factor",
    "d-clas-job": "D-CLAS by job",
    "lccf": "LCCF",
    "lccf-factor": "LCCF, factor",
}
"""The simulator's policies that run live, with their names in plots."""


class CoflowTable(Strict):
    """The table of a coflow policy: `[parrot]`, `[lccf]`, …"""

    interval_ms: Annotated[float, Field(ge=40, le=10_000, allow_inf_nan=False, strict=False)] = 100.0


class Coordinated(Working):
    """A coordinator at work, the agents' addresses, and where jobs publish their progress."""

    def __init__(self, coordinator: Coordinator, addresses: Mapping[str, str], progress: Path) -> None:
        super().__init__("coordinator")
        self._coordinator = coordinator
        self._addresses = addresses
        self._progress = progress
        self._agents_cpu_s = self._spent()
        self._failed: Exception | None = None

    def _spent(self) -> float:
        """Return the processor time of all agents so far, s."""
        found = map(look, self._addresses.values())
        return sum(each.cpu_s for each in found if not isinstance(each, str))

    def work(self) -> None:
        """Set rates. Those in force at the end last until their leases end."""
        urgent()
        try:
            self._coordinator.run(self._stop)
        except Exception as error:  # the run would go on as plain TCP, and call that the policy
            self._failed = error

    def job(self, spec: JobSpec) -> JobSpec:
        """Let the job publish its progress."""
        return spec.model_copy(update={"progress": self._progress})

    def report(self) -> Report:
        """Return what the coordinator did, and its cost. Raises EntrainError if it failed."""
        self.end()
        if self._failed is not None:
            raise EntrainError(f"the coordinator failed: {self._failed!r}") from self._failed
        told, decider = self._coordinator.told, self._coordinator.decider
        values: dict[str, JsonValue] = {
            "interval_ms": 1e3 * self._coordinator.interval_s,
            "updates": told.updates,
            "decisions": decider.decisions,
            "late": told.late,
            "refused": told.refused,
            "unanswered": told.unanswered,
            "update_ms": percentiles([1e3 * each for each in told.update_s]),
            "decision_ms": percentiles([1e3 * each for each in decider.decision_s]),
            "coordinator_cpu_s": told.cpu_s,
            "agents_cpu_s": self._spent() - self._agents_cpu_s,
            "events": list(told.events),
        }
        return Report(values=values)


class Coflows(Policy):
    """A coflow policy of the simulator, on a real network."""

    table = CoflowTable

    def __init__(self, name: str, label: str) -> None:
        self._name = name
        self.label = label  # type: ignore[misc]  # one class for several policies

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """Return the one control that follows schedules."""
        return (CONTROL,)

    def series(self, control: str | None) -> str:
        """Return the name of the only series."""
        return self._name

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Run an agent on every host, and a coordinator. Jobs publish progress in the run's directory."""
        interval_ms = CoflowTable.model_validate(run.table).interval_ms
        progress = run.directory / "progress"
        progress.mkdir()
        _warm_up(self._name)
        asking = agents(
            run.network, run.record, run.directory, slot_ms=interval_ms / SLOTS, progress=progress
        )
        with asking as addresses, contextlib.ExitStack() as stack:
            stubs = {
                host: HostStub(stack.enter_context(open_channel(grpc, address)))
                for host, address in addresses.items()
            }
            coordinator = Coordinator(stubs, self._decider(run), interval_ms / 1e3)
            session = Coordinated(coordinator, addresses, progress)
            with session.working():
                yield session

    def _decider(self, run: Run) -> Decider:
        topology, routing = run.network.topology, run.routing
        capacity = {name: rate * MBPS * PAYLOAD for name, rate in directions(topology)}
        return Decider(coflow_policy(self._name), lambda flow: crossed(topology, routing, flow), capacity)


def _warm_up(name: str) -> None:
    """Compile the policy before jobs wait for it."""
    flows = tuple(Flow("10.0.0.1", port, "10.0.0.2", 1) for port in (1, 2))
    coflows = tuple(Coflow(CoflowKey(f"job{port}", 0, 0), flows, (9, 9), (9, 9)) for port in (1, 2))
    given = Seen(coflows, {"job1": 1, "job2": 2}, {"job1": 0, "job2": 1})
    Decider(coflow_policy(name), lambda flow: ("up", "down"), {"up": 1.0, "down": 1.0}).rates(given, 0.0)
