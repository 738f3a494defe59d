"""What there is to watch: one source for the terminal, the page and Prometheus.

Everything comes from the controller's API (a run in progress answers it, too) and from the agents'. Readings
that follow each other give rates: what the switches' counters have grown by, divided by the time between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import grpc

from controlplane import api_pb2 as api
from controlplane.client import RunningNetwork, call
from controlplane.queues import Queue, by_link, queue_of
from hostbpf.clock import SlotClock
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from machine.errors import EntrainError
from machine.patience import patience
from machine.record import RECORDS
from machine.tls import Identity, open_channel
from wire.slot_header import LANES, slot_near

HISTORY = 240
"""Readings that are kept of each link."""
SLOW_S = 1.0
"""How often everything but the links is read."""
TIMEOUT_S = patience(5.0)
"""How long an agent may take to answer."""
PATIENCE_S = patience(60.0)
"""How long a controller may: while a run starts agents or jobs, it answers nobody."""
SLOT_MS = 60.0
TOO_LONG = "TOO_LONG"
"""A switch's reason to drop what exceeds the MTU of a port's link, beside those of its program."""
"""Length of a slot, where no agent tells it."""


class Ended(EntrainError):
    """The network was taken down, or its run has ended."""


@dataclass(frozen=True)
class Counted:
    """A port's counters since the switch's program was set: packets and bytes, received and sent."""

    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int


@dataclass(frozen=True)
class LinkView:
    """One direction of a link. Rates are in Mbit/s.

    `measured_mbps` is the mean since the reading before, None in the first. `slots` has what is planned for
    the present slot and those after it, and `planned_mbps` is the first of them; links that leave a host have
    neither, for no switch keeps a load table of them. `backlog_bytes` is what waits in its queues, and
    `dropped_packets` what they have dropped; None where they cannot be read.
    """

    name: str
    source: str
    target: str
    port: int
    capacity_mbps: float
    measured_mbps: float | None
    planned_mbps: float | None
    slots: tuple[float, ...] = ()
    backlog_bytes: int | None = None
    dropped_packets: int | None = None

    @property
    def used(self) -> float | None:
        """The measured part of the capacity, 0 to 1."""
        return None if self.measured_mbps is None else self.measured_mbps / self.capacity_mbps


@dataclass(frozen=True)
class SwitchView:
    """A switch: its state, entries by table, drops by reason, and counters by port."""

    name: str
    role: str
    target: str
    status: str
    tables: Mapping[str, int]
    drops: Mapping[str, int]
    ports: Mapping[int, Counted]


@dataclass(frozen=True)
class AgentView:
    """A host's agent; `problem` says why it does not answer. Delays are medians of the latest, in ms."""

    host: str
    problem: str = ""
    process_id: int = 0
    flows: int = 0
    enforcer: str = ""
    negotiation_ms: float | None = None
    decision_ms: float | None = None
    carriers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class HostView:
    """A host, and the port of the switch that it is linked to."""

    name: str
    address: str
    switch: str
    port: int


@dataclass(frozen=True)
class Phase:
    """One iteration: it computes until `compute_end_s`, then communicates. Seconds since 1970."""

    number: int
    start_s: float
    compute_end_s: float
    end_s: float


@dataclass(frozen=True)
class JobView:
    """A job. `state` is that of the admission, or "running". Times are in ms, None where they are unknown.

    `ideal_ms` is an iteration's time alone in the network, as measured or else as computed (`ideal` says
    which); `iteration_ms` is the median of the latest iterations.
    """

    name: str
    state: str
    hosts: tuple[str, ...]
    done: int | None = None
    iterations: int | None = None
    iteration_ms: float | None = None
    ideal_ms: float | None = None
    ideal: str = ""
    note: str = ""
    phases: tuple[Phase, ...] = ()

    @property
    def over_ideal(self) -> float | None:
        """The time of an iteration divided by the ideal one."""
        if self.iteration_ms is None or not self.ideal_ms:
            return None
        return self.iteration_ms / self.ideal_ms


@dataclass(frozen=True)
class CircuitView:
    """A circuit joins two ports (`leaf1-eth5`), for a job or for nobody."""

    a: str
    b: str
    job: str


@dataclass(frozen=True)
class Event:
    """Something that happened; seconds since 1970."""

    unix_s: float
    text: str


@dataclass(frozen=True)
class Sample:
    """One reading of a link, in Mbit/s."""

    unix_s: float
    measured_mbps: float | None
    planned_mbps: float | None


@dataclass(frozen=True)
class Snapshot:
    """A network at one time. `problem` says what could not be read; then `links` may be empty.

    `lacking` says what cannot be shown of the program that the switches run.
    """

    unix_s: float
    network: str
    run: str
    routing: str
    program: str
    slot: int
    slot_ms: float
    problem: str
    links: tuple[LinkView, ...]
    switches: tuple[SwitchView, ...]
    hosts: tuple[HostView, ...]
    agents: tuple[AgentView, ...]
    jobs: tuple[JobView, ...]
    circuits: tuple[CircuitView, ...]
    events: tuple[Event, ...]
    history: Mapping[str, tuple[Sample, ...]]
    relays: tuple[Queue, ...] = ()
    """Of links with a delay: one for both directions."""
    lacking: str = ""

    def document(self) -> dict[str, Any]:
        """Return the snapshot as JSON data."""
        shown = dataclasses.asdict(self)
        for one, job in zip(shown["jobs"], self.jobs, strict=True):
            one["over_ideal"] = job.over_ideal
        return shown


@dataclass(frozen=True)
class _Slow:
    """What is read less often."""

    network: Any
    drops: Mapping[str, Mapping[str, int]]
    agents: tuple[AgentView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    circuits: tuple[CircuitView, ...] = ()
    slot_ms: float = SLOT_MS


Used = Mapping[tuple[str, int], tuple[float | None, float | None]]
"""By switch and port: what it sends and receives, in Mbit/s; None where that is not known yet."""


class Rates:
    """What ports send and receive, from one reading of their counters to the next."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], Any] = {}
        self._lacking = ""

    def of(self, loads: Any) -> Used:
        """Return the rates since the reading before.

        None: there was none, or the switch has started again since, and counts from 0, or with another
        program it is somebody else who counts.
        """
        if loads.lacking != self._lacking:
            self._before.clear()
            self._lacking = loads.lacking
        return {(port.switch, port.port): self._of(port) for port in loads.ports}

    def _of(self, port: Any) -> tuple[float | None, float | None]:
        before, now = self._before.get((port.switch, port.port)), port.counters
        self._before[port.switch, port.port] = now
        if before is None or now.monotonic_ns <= before.monotonic_ns:
            return None, None
        to_mbps = 8e3 / (now.monotonic_ns - before.monotonic_ns)
        sent, received = now.sent_bytes - before.sent_bytes, now.received_bytes - before.received_bytes
        return (None, None) if sent < 0 or received < 0 else (sent * to_mbps, received * to_mbps)


def measured(stub: Any, interval_ms: int) -> tuple[Any, Used]:
    """Read all ports twice, `interval_ms` apart; return the second reading, and the rates between both.

    Raises EntrainError if the load tables cannot be read.
    """
    rates = Rates()
    stream = stub.WatchLoads(api.WatchLoadsRequest(interval_ms=max(1, interval_ms), counters=True))
    for number, reading in enumerate(stream):
        used = rates.of(reading)
        if number:
            stream.cancel()
            if reading.problem:
                raise EntrainError(reading.problem)
            return reading, used
    raise EntrainError("the network ended while it was read")


@dataclass(frozen=True)
class RemoteAgents:
    """Where agents of other machines listen, and who asks them.

    `address` is HOST:PORT, in which `{host}` and `{address}` stand for a host's name and its address in the
    network. An agent must have the certificate of its host.
    """

    address: str
    identity: Identity

    def of(self, host: Any) -> str:
        """Return the address of a host's agent."""
        return self.address.replace("{host}", host.name).replace("{address}", host.address)


class Source:
    """Reads a network again and again: iterate over `snapshots`."""

    def __init__(
        self,
        network: RunningNetwork,
        interval_ms: int = 500,
        slot_ms: float | None = None,
        remote: RemoteAgents | None = None,
    ) -> None:
        """`slot_ms` is the length of slots if no agent tells it; `remote` tells of agents elsewhere."""
        self.network = network
        self._remote = remote
        self._interval_ms = interval_ms
        self._slot_ms = slot_ms or SLOT_MS
        self._rates = Rates()
        self._history: dict[str, deque[Sample]] = {}
        self._channels: dict[str, Any] = {}

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield a snapshot per interval, for ever. Raises Ended, or EntrainError if nobody answers."""
        began = False
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            try:
                with call(self.network) as stub:
                    slow, due = self._read(stub), time.monotonic() + SLOW_S
                    request = api.WatchLoadsRequest(interval_ms=self._interval_ms, counters=True)
                    for loads in stub.WatchLoads(request):
                        if time.monotonic() >= due:
                            slow, due = self._read(stub), time.monotonic() + SLOW_S
                        began = True
                        yield self._snapshot(loads, slow)
            except EntrainError as error:
                if not began:
                    raise
                raise Ended(f"{self.network.name} has ended: {_kind(self.network)}") from error
        raise Ended(f"{self.network.name} has ended: {_kind(self.network)}")

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # -- links

    def _snapshot(self, loads: Any, slow: _Slow) -> Snapshot:
        now_s = loads.unix_ns / 1e9
        clock = SlotClock.shared(slow.slot_ms)
        present = clock.slot(time.monotonic_ns() - time.time_ns() + loads.unix_ns)  # when they were read
        links: list[LinkView] = []
        ports: dict[str, dict[int, Counted]] = {}
        hosts = {host.name: host for host in slow.network.hosts}
        used = self._rates.of(loads)
        queues = {queue.link: queue for queue in by_link(map(queue_of, loads.queues))}
        read = not (loads.problem or loads.lacking) or any(port.slots for port in loads.ports)
        for port in loads.ports:
            sent, received = used[port.switch, port.port]
            planned = {slot_near(present, slot.slot): slot.load_mbps for slot in port.slots}
            links.append(
                LinkView(
                    port.link,
                    port.switch,
                    port.peer,
                    port.port,
                    port.capacity_mbps,
                    sent,
                    planned.get(present, 0.0) if read else None,
                    tuple(planned.get(present + later, 0.0) for later in range(LANES)) if read else (),
                    *_queued(queues.get(port.link)),
                )
            )
            if port.peer in hosts:
                name = f"{port.peer}->{port.switch}"
                queued = _queued(queues.get(name))
                links.append(
                    LinkView(name, port.peer, port.switch, 0, port.capacity_mbps, received, None, (), *queued)
                )
            ports.setdefault(port.switch, {})[port.port] = Counted(
                port.counters.received_packets,
                port.counters.received_bytes,
                port.counters.sent_packets,
                port.counters.sent_bytes,
            )
        links.sort(key=lambda link: (link.source in hosts, link.target in hosts))  # between switches first
        for link in links:
            samples = self._history.setdefault(link.name, deque(maxlen=HISTORY))
            samples.append(Sample(now_s, link.measured_mbps, link.planned_mbps))
        found = slow.network
        return Snapshot(
            unix_s=now_s,
            network=found.name,
            run=found.run,
            routing=found.routing,
            program=found.program,
            slot=present,
            slot_ms=slow.slot_ms,
            problem=loads.problem,
            relays=tuple(queue for queue in queues.values() if queue.place == "relay"),
            lacking=loads.lacking,
            links=tuple(links),
            switches=tuple(
                SwitchView(
                    switch.name,
                    switch.role,
                    switch.target,
                    switch.status,
                    dict(switch.tables),
                    slow.drops.get(switch.name, {}),
                    ports.get(switch.name, {}),
                )
                for switch in found.switches
            ),
            hosts=tuple(HostView(each.name, each.address, each.switch, each.port) for each in found.hosts),
            agents=slow.agents,
            jobs=slow.jobs,
            circuits=slow.circuits,
            events=tuple(Event(each.unix_ns / 1e9, each.text) for each in found.events),
            history={name: tuple(samples) for name, samples in self._history.items()},
        )

    # -- everything else

    def _read(self, stub: Any) -> _Slow:
        network = stub.GetNetwork(api.GetNetworkRequest(), timeout=PATIENCE_S)
        drops = _unless_refused(lambda: stub.ListDrops(api.ListDropsRequest(), timeout=PATIENCE_S))
        training = stub.ListTraining(api.ListTrainingRequest(), timeout=PATIENCE_S)
        admitted = _unless_refused(lambda: stub.ListJobs(api.ListJobsRequest(), timeout=PATIENCE_S))
        circuits = _unless_refused(lambda: stub.ListCircuits(api.ListCircuitsRequest(), timeout=PATIENCE_S))
        addresses = {host.name: address for host in network.hosts if (address := self._agent_of(host))}
        statuses = self._ask(addresses, "GetStatus", pb.GetStatusRequest())
        lengths = [each.slot_ns / 1e6 for each in statuses.values() if not isinstance(each, str)]
        jobs = {job.name: _trains(job) for job in training.jobs}
        if not jobs:
            jobs |= _by_agents(self._ask(addresses, "ListStarts", pb.ListStartsRequest()))
        for job in admitted.jobs if admitted is not None else ():
            jobs[job.name] = _with_admission(jobs.get(job.name), job)
        return _Slow(
            network,
            {} if drops is None else _drops(drops),
            tuple(_agent(host, status) for host, status in statuses.items()),
            tuple(jobs.values()),
            ()
            if circuits is None
            else tuple(
                CircuitView(each.circuit.a.name, each.circuit.b.name, each.job) for each in circuits.circuits
            ),
            lengths[0] if lengths else self._slot_ms,
        )

    def _ask(self, addresses: Mapping[str, str], method: str, request: Any) -> dict[str, Any]:
        """Ask all agents at once. Returns an answer, or the reason why there is none, by host."""
        asked = {}
        for host, address in addresses.items():
            if host not in self._channels:
                identity = self._remote.identity if self._remote and not address.startswith("unix:") else None
                self._channels[host] = open_channel(grpc, address, (), identity, host)
            stub = HostStub(self._channels[host])
            asked[host] = getattr(stub, method).future(request, timeout=TIMEOUT_S)
        answers: dict[str, Any] = {}
        for host, answer in asked.items():
            try:
                answers[host] = answer.result()
            except grpc.RpcError as error:
                gone = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                answers[host] = self._silent(host, addresses[host]) if gone else str(error.details())
        return answers

    def _agent_of(self, host: Any) -> str:
        """Return the address of a host's agent: as told, where it listens by default, or elsewhere."""
        if host.agent:
            return str(host.agent)
        default = RECORDS / "agents" / f"{host.interface}.sock"
        if default.exists():
            return f"unix:{default}"
        return self._remote.of(host) if self._remote else ""

    def _silent(self, host: str, address: str) -> str:
        if self._remote and not address.startswith("unix:"):
            return f"does not answer at {address} with a certificate of {host} from your authority"
        return f"does not answer at {address}"


class Latest:
    """Reads a source in a thread of its own, and keeps the latest snapshot for any number of readers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._failure: EntrainError | None = None
        self._number = 0
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        try:
            for snapshot in self._source.snapshots():
                self._set(snapshot, None)
        except EntrainError as error:
            self._set(None, error)

    def _set(self, snapshot: Snapshot | None, failure: EntrainError | None) -> None:
        with self._changed:
            self._snapshot, self._failure = snapshot or self._snapshot, failure
            self._number += 1
            self._changed.notify_all()

    def wait(self, after: int = 0, timeout_s: float | None = None) -> tuple[int, Snapshot]:
        """Return a snapshot newer than number `after`, and its number; the same one after `timeout_s`.

        Raises why there will be no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number > after or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._snapshot is None:
                raise EntrainError(f"{self._source.network.name} does not answer")
            return self._number, self._snapshot


def _drops(drops: Any) -> dict[str, dict[str, int]]:
    """Return drops by switch and reason; what was too long for the links of a switch's ports is one."""
    found = {switch.name: dict(switch.packets) for switch in drops.switches}
    for port in drops.too_long:
        reasons = found.setdefault(port.switch, {})
        reasons[TOO_LONG] = reasons.get(TOO_LONG, 0) + port.packets
    return found


def _queued(queue: Queue | None) -> tuple[int | None, int | None]:
    """Return what waits in a queue, in bytes, and how many packets it has dropped."""
    return (None, None) if queue is None else (queue.backlog_bytes, queue.dropped_packets)


def _kind(network: RunningNetwork) -> str:
    run = network.directory.parent.name == "runs"
    return "its run is over; `entrain report DIR` shows what it kept" if run else "it was taken down"


def _unless_refused(ask: Any) -> Any:
    """Return the answer, or None where the network has no such thing."""
    try:
        return ask()
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED):
            return None
        raise


def _agent(host: str, status: Any) -> AgentView:
    if isinstance(status, str):
        return AgentView(host, status)
    delays = status.scheduling
    return AgentView(
        host,
        "",
        status.process_id,
        status.flows,
        status.enforcer,
        median(delays.negotiation_ms) if delays.negotiation_ms else None,
        median(delays.decision_ms) if delays.decision_ms else None,
        dict(status.carriers),
        dict(delays.counts),
    )


def _trains(job: Any) -> JobView:
    phases = tuple(
        Phase(each.number, each.start_ns / 1e9, each.compute_end_ns / 1e9, each.end_ns / 1e9)
        for each in job.recent
    )
    latest = [1e3 * (phase.end_s - phase.start_s) for phase in phases[-10:]]
    return JobView(
        job.name,
        "running" if job.done < job.iterations else "done",
        tuple(job.hosts),
        job.done,
        job.iterations,
        median(latest) if latest else None,
        job.ideal_ms or None,
        job.ideal,
        phases=phases,
    )


def _by_agents(answers: Mapping[str, Any]) -> dict[str, JobView]:
    """Return the jobs whose processes the agents know."""
    hosts: dict[str, list[str]] = {}
    done: dict[str, int] = {}
    lasted: dict[str, list[float]] = {}
    for host, answer in answers.items():
        for process in () if isinstance(answer, str) else answer.processes:
            hosts.setdefault(process.job, []).append(host)
            done[process.job] = max(process.starts, done.get(process.job, 0))
            lasted.setdefault(process.job, []).extend(each.lasted_ms for each in process.recent[-10:])
    return {
        name: JobView(
            name,
            "running",
            tuple(dict.fromkeys(where)),
            done[name],
            iteration_ms=median(lasted[name]) if lasted[name] else None,
        )
        for name, where in hosts.items()
    }


def _with_admission(known: JobView | None, job: Any) -> JobView:
    """Return a job of a cluster: what it trains, if that is known, and how its admission stands."""
    from entrain.jobs import waits_for

    view = known or JobView(job.name, job.phase, tuple(job.placement.hosts))
    note = job.problem or (
        waits_for(job.waiting) if job.phase == "waiting" and job.HasField("waiting") else ""
    )
    return dataclasses.replace(view, state=job.phase, hosts=tuple(job.placement.hosts), note=note)
