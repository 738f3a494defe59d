"""A run in progress can be watched: it answers the part of the controller's API that changes nothing.

It does so in the run's event loop while the run waits for its jobs, and it asks the switches only when
somebody asks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane.client import RUNS, SOCKET
from controlplane.controller import OWNERS, Controller, serving
from controlplane.fabric import Fabric
from controlplane.pipeline import Pipeline
from controlplane.queues import Queue
from controlplane.readings import EVENTS, Readings, ReadQueues
from controlplane.roles import NEEDS
from controlplane.routing import Routing
from controlplane.slot_clock import forget_clocks
from controlplane.topology import Topology
from machine.errors import EntrainError
from machine.record import Record, Resource
from workloads.jobs import JobSpec

RECENT = 200
"""How many of a job's latest iterations are told."""
_LOOK_S = 0.1
"""How often a watcher that waits for switches looks for them."""


@dataclass
class Training:
    """A job that trains: its hosts, an iteration's ideal time, and what its first rank has recorded."""

    spec: JobSpec
    hosts: tuple[str, ...]
    ideal_ms: float = 0.0
    ideal: str = ""
    done: int = 0
    recent: deque[api.TrainingIteration] = field(default_factory=lambda: deque(maxlen=RECENT))
    _position: int = 0
    _offset_ns: int = 0

    def look(self) -> None:
        """Read what the first rank has recorded since the last look."""
        path = self.spec.records(0)
        if not path.exists():
            return
        with path.open("rb") as lines:
            lines.seek(self._position)
            new = lines.read()
        new = new[: new.rfind(b"\n") + 1]
        self._position += len(new)
        for line in new.splitlines():
            if b'"kind": "clock"' in line:
                self._offset_ns = json.loads(line)["realtime_offset_ns"]
            elif b'"kind": "iteration"' in line:
                said = json.loads(line)
                keys = ("start_ns", "compute_end_ns", "end_ns")
                times = {key: said[key] + self._offset_ns for key in keys}
                self.recent.append(api.TrainingIteration(number=said["iteration"], **times))
                self.done += 1

    def message(self) -> api.TrainingJob:
        """Return the job as the API tells it."""
        self.look()
        return api.TrainingJob(
            name=self.spec.name,
            hosts=self.hosts,
            iterations=self.spec.iterations,
            done=self.done,
            ideal_ms=self.ideal_ms,
            ideal=self.ideal,
            recent=self.recent,
        )


class Live(api_grpc.ControllerServicer):
    """What a run shows of itself.

    `agents` has the gRPC addresses of agents by host, while a policy runs some. `jobs` has the jobs that
    train. `queues` reads the queues of the emulated network. All coroutines belong to the run's event loop.
    """

    def __init__(
        self,
        name: str,
        topology: Topology,
        namespace: str,
        host_processes: Mapping[str, int],
        agents: Mapping[str, str],
        queues: ReadQueues = lambda: (),
    ) -> None:
        self.name = name
        self.jobs: Sequence[Training] = ()
        self._topology = topology
        self._namespace = namespace
        self._host_processes = host_processes
        self._agents = agents
        self._emulated_queues = queues
        self._shown: Readings | None = None
        self._fabric: Fabric | None = None
        self._connected = contextlib.AsyncExitStack()
        self._events: deque[api.Event] = deque(maxlen=EVENTS)
        self._served = contextlib.AsyncExitStack()
        for name in NEEDS.keys() - vars(Live).keys():
            setattr(self, name, self._refuse)

    async def open(self, record: Record) -> None:
        """Answer calls until `close`, in a directory that `record` owns."""
        socket = _directory(self.name, record) / SOCKET
        await self._served.enter_async_context(serving(self, socket, OWNERS))

    async def close(self) -> None:
        """Answer no more calls, and disconnect."""
        await self._served.aclose()
        await self.disconnect()

    async def connect(self, pipeline: Pipeline, routing: Routing) -> Fabric:
        """Return the run's own connection to the switches, which stays until `disconnect`."""
        if self._fabric is None:
            self._fabric = await self._connected.enter_async_context(Fabric(self._topology, pipeline))
        self._shown = _Own(
            self._topology,
            routing,
            self._namespace,
            self._host_processes,
            self._fabric,
            self._emulated_queues,
        )
        return self._fabric

    async def disconnect(self) -> None:
        """Give up the connection to the switches, so that another controller can have them."""
        self._shown = self._fabric = None
        await self._connected.aclose()

    async def refused(self) -> int:
        """Return how many carriers the switches have refused so far. Raises the error of one that is away."""
        assert self._fabric is not None, "the run controls the switches itself"
        return sum(sum(counts.values()) for counts in (await self._fabric.refused()).values())

    async def queues(self) -> list[Queue]:
        """Return all queues of the network. Raises the error of a switch that is away."""
        assert self._shown is not None, "the run has connected to its switches"
        return await self._shown.read_queues()

    @contextlib.contextmanager
    def showing(self, controller: Controller) -> Iterator[None]:
        """Show what `controller` tells, in this context."""
        self._shown = controller
        try:
            yield
        finally:
            self._shown = None

    @contextlib.asynccontextmanager
    async def in_slots(self, slot_ms: float) -> AsyncIterator[None]:
        """Within, the switches refuse carriers about slots of `slot_ms` that are not the present ones.

        Where a switch's clock cannot be set, an event says so, and that switch refuses none.
        """
        assert self._shown is not None and self._fabric is not None, "tables are written before policies run"
        with contextlib.suppress(EntrainError):  # tried again below, with an event
            await self._shown.set_clocks(slot_ms)
        async with self._shown.watching(slot_ms):
            yield
        with contextlib.suppress(EntrainError):  # a switch that is gone has forgotten
            await forget_clocks(self._fabric)

    def note(self, event: str) -> None:
        """Keep an event for those who watch."""
        self._events.append(api.Event(unix_ns=time.time_ns(), text=event))

    # -- the API

    async def GetNetwork(self, request: Any, context: Any) -> api.Network:  # noqa: N802
        network = await (await self._now()).GetNetwork(request, context)
        network.run = self.name
        for host in network.hosts:
            host.agent = self._agents.get(host.name, "")
            host.process_id = self._host_processes[host.name]
        events = sorted([*network.events, *self._events], key=lambda event: event.unix_ns)
        del network.events[:]
        network.events.extend(events)
        return network

    async def WatchLoads(  # noqa: N802
        self, request: api.WatchLoadsRequest, context: Any
    ) -> AsyncIterator[api.Loads]:
        while True:
            shown = await self._now()
            async for loads in shown.WatchLoads(request, context):
                yield loads
                if shown is not self._shown:
                    break
            if not request.interval_ms:
                return

    async def ListDrops(self, request: Any, context: Any) -> api.Drops:  # noqa: N802
        return await (await self._now()).ListDrops(request, context)

    async def ListTraining(self, request: Any, context: Any) -> api.Training:  # noqa: N802
        return api.Training(jobs=[job.message() for job in self.jobs])

    async def ListJobs(self, request: Any, context: Any) -> api.Jobs:  # noqa: N802
        return await (await self._controller(context)).ListJobs(request, context)

    async def ListCircuits(self, request: Any, context: Any) -> api.Circuits:  # noqa: N802
        return await (await self._controller(context)).ListCircuits(request, context)

    async def _refuse(self, request: Any, context: Any) -> None:
        """Answer what a run does not do."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{self.name} is a run, which is only watched")

    async def _now(self) -> Readings:
        """Return what is shown, as soon as the run is connected to its switches."""
        while self._shown is None:
            await asyncio.sleep(_LOOK_S)
        return self._shown

    async def _controller(self, context: Any) -> Controller:
        shown = await self._now()
        if not isinstance(shown, Controller):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{self.name} is no run on a cluster")
            raise AssertionError("abort raises")
        return shown


class _Own(Readings):
    """The readings of the switches that the run itself is connected to."""

    def __init__(
        self,
        topology: Topology,
        routing: Routing,
        namespace: str,
        host_processes: Mapping[str, int],
        fabric: Fabric,
        queues: ReadQueues,
    ) -> None:
        super().__init__(topology, routing, namespace, host_processes, queues=queues)
        self._read(fabric)


def _directory(name: str, record: Record) -> Path:
    """Make the directory of a run; with a number if others of its name are in progress."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        directory = RUNS / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            record.own(Resource("path", str(directory)))
            return directory
    raise FileExistsError(directory)
