"""What can be read of a network: the part of the API (`api.proto`) that changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane import requests
from controlplane.admission import TooMany
from controlplane.constants import RefusedReason
from controlplane.fabric import Fabric, PortCounters
from controlplane.loads import LoadReader, PortLoad
from controlplane.mtu import mtu_of
from controlplane.network import Host, Topology
from controlplane.queues import Queue
from controlplane.routing import Routing
from controlplane.slot_clock import forget_clocks, keep_clocks, set_clocks
from machine.callers import Denied
from machine.errors import BadInput, EntrainError
from machine.requests import checked
from machine.text import escaped, sendable

EVENTS = 200
"""How many of the latest events are kept."""
REFUSED_INTERVAL_S = 2.0

ReadQueues = Callable[[], Sequence[Queue]]
ReadCounters = Callable[[], Mapping[tuple[str, int], PortCounters]]


class Readings(api_grpc.ControllerServicer):
    """Answers what can be read of the switches that `_read` was last given.

    `on_event` receives a line for each event. If this machine emulates the network, `queues` reads the queues
    of its interfaces and relays, and `counters` what the interfaces of switches count.
    """

    def __init__(
        self,
        topology: Topology,
        routing: Routing,
        namespace: str,
        host_processes: Mapping[str, int],
        on_event: Callable[[str], None] = lambda _: None,
        queues: ReadQueues = lambda: (),
        counters: ReadCounters = dict,
    ) -> None:
        self.topology = topology
        self._routing: Routing = routing
        self._namespace = namespace
        self._host_processes = host_processes
        self._on_event = on_event
        self._emulated_queues = queues
        self._emulated_counters = counters
        self._events: deque[api.Event] = deque(maxlen=EVENTS)
        self._fabric: Fabric
        self._loads: LoadReader

    def _read(self, fabric: Fabric) -> None:
        """Read from these switches from now on."""
        self._fabric = fabric
        self._loads = LoadReader(fabric)

    def note(self, event: str) -> None:
        """Keep an event for those who watch, and pass it on."""
        event = escaped(event)
        self._events.append(api.Event(unix_ns=time.time_ns(), text=event))
        self._on_event(event)

    @contextlib.asynccontextmanager
    async def watching(self, slot_ms: float | None) -> AsyncIterator[None]:
        """Within, note which hosts' carriers are refused.

        With `slot_ms` the switches know the present slot, and refuse carriers about others, too.
        """
        watching = [asyncio.create_task(self._watch_refused(), name="refused carriers")]
        if slot_ms is not None:
            keeping = keep_clocks(functools.partial(self.set_clocks, slot_ms), self.note)
            watching.append(asyncio.create_task(keeping, name="clocks of switches"))
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def read_queues(self) -> list[Queue]:
        """Return all queues that can be read. Raises the error of a switch that does not answer."""
        return [*await self._fabric.queues(), *self._emulated_queues()]

    async def _counters(self) -> Mapping[tuple[str, int], PortCounters]:
        """Return what the ports have counted: by the switches' program, or else by the kernel, if at all."""
        if self._fabric.pipeline.counts_ports:
            return await self._fabric.counters()
        return self._emulated_counters()

    async def set_clocks(self, slot_ms: float) -> None:
        """Let the switches know the present slot. Raises the errors of `slot_clock.set_clocks`."""
        await set_clocks(self._fabric, self._loads, slot_ms)

    async def forget_clocks(self) -> None:
        """Let the switches forget the present slot. One that does not answer forgets by itself."""
        with contextlib.suppress(EntrainError):
            await forget_clocks(self._fabric)

    async def _watch_refused(self) -> None:
        """Report hosts whose carriers are refused, as an event for each host and reason."""
        before: dict[Host, dict[RefusedReason, int]] | None = None
        while True:
            with contextlib.suppress(EntrainError):
                refused = await self._fabric.refused(besides_away=True)
                for host, counts in refused.items() if before is not None else ():
                    for reason, count in counts.items():
                        new = count - (before or {}).get(host, {}).get(reason, 0)
                        if new > 0:
                            self.note(
                                f"{host.leaf}: {host.name} at port {host.leaf_port}: carriers refused: "
                                f"{new} {reason.name} ({count} in all)"
                            )
                before = {**(before or {}), **refused}
            await asyncio.sleep(REFUSED_INTERVAL_S)

    async def GetNetwork(self, request: Any, context: Any) -> api.Network:  # noqa: N802
        statuses, tables = self._fabric.statuses(), self._fabric.tables()
        return api.Network(
            name=self.topology.name,
            routing=self._routing,
            namespace=self._namespace,
            process_id=os.getpid(),
            topology_hash=topology_hash(self.topology),
            program=self._fabric.pipeline.name,
            fabric=self._fabric.pipeline.is_fabric,
            ports=[
                api.Port(
                    link=switch.link(port.number),
                    switch=switch.name,
                    peer=port.peer,
                    interface=switch.interface(port.number),
                )
                for switch in self.topology.switches
                for port in switch.ports
            ],
            events=self._events,
            switches=[
                api.Switch(
                    name=switch.name,
                    role=switch.role,
                    target=switch.target,
                    device_id=switch.device_id,
                    grpc_address=switch.grpc_address,
                    certificates=str(switch.certificates or ""),
                    status=statuses[switch.name],
                    tables=tables[switch.name],
                )
                for switch in self.topology.switches
            ],
            hosts=[
                api.Host(
                    name=host.name,
                    address=host.ip,
                    interface=host.interface,
                    switch=host.leaf,
                    port=host.leaf_port,
                    process_id=self._host_processes.get(host.name, 0),
                )
                for host in self.topology.hosts
            ],
        )

    async def WatchLoads(  # noqa: N802
        self, request: api.WatchLoadsRequest, context: Any
    ) -> AsyncIterator[api.Loads]:
        async with told(context):
            asked = checked(requests.WatchLoads, request)
        due = time.monotonic()
        while True:
            loads: list[PortLoad] = []
            counted: Mapping[tuple[str, int], PortCounters] = {}
            queues: list[Queue] = []
            problem = lacking = ""
            try:
                if self._fabric.pipeline.is_fabric:
                    loads = await self._loads.read()
            except EntrainError as error:
                problem = str(error)
            read_ns = time.time_ns()
            try:
                if asked.counters:
                    counted, queues = await asyncio.gather(self._counters(), self.read_queues())
            except EntrainError as error:
                problem = problem or str(error)
            if problem and not asked.interval_ms:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sendable(problem))
            if not self._fabric.pipeline.is_fabric:
                unread = " and no counters of ports" if asked.counters and not counted else ""
                lacking = self._fabric.lacking(f"load tables{unread}")
            if not loads and (counted or lacking):  # the rest is known without the load tables
                loads = [
                    PortLoad(switch.name, port.number, port.peer, port.rate_mbps, {})
                    for switch in self.topology.switches
                    for port in switch.ports
                ]
            yield api.Loads(
                unix_ns=read_ns,
                problem=problem,
                ports=[self._port(load, counted.get((load.switch, load.port))) for load in loads],
                queues=[queue.message() for queue in queues],
                lacking=lacking,
            )
            if not asked.interval_ms:
                return
            due = max(due + asked.interval_ms / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def _port(self, load: PortLoad, counted: PortCounters | None) -> api.PortLoad:
        return api.PortLoad(
            switch=load.switch,
            port=load.port,
            peer=load.peer,
            capacity_mbps=load.capacity_mbps,
            slots=[api.SlotLoad(slot=slot, load_mbps=mbps) for slot, mbps in load.slots.items()],
            refused=load.refused,
            link=self.topology.switch_by_name[load.switch].link(load.port),
            counters=None if counted is None else api.Counters(**vars(counted)),
        )

    async def ListDrops(self, request: Any, context: Any) -> api.Drops:  # noqa: N802
        async with told(context):
            queues, too_long = await asyncio.gather(self.read_queues(), self._fabric.too_long())
            is_fabric = self._fabric.pipeline.is_fabric
            drops = await self._fabric.drops() if is_fabric else {}
        return api.Drops(
            switches=[
                api.SwitchDrops(name=name, packets={reason.name: count for reason, count in found.items()})
                for name, found in drops.items()
            ],
            queues=[queue.message() for queue in queues],
            too_long=[
                api.TooLong(
                    switch=switch.name,
                    port=port.number,
                    link=switch.link(port.number),
                    mtu=mtu_of(self.topology, port),
                    packets=packets,
                )
                for switch in self.topology.switches
                for port in switch.ports
                if (packets := too_long.get((switch.name, port.number)))
            ],
            lacking="" if is_fabric else self._fabric.lacking("counters of drops"),
        )

    async def ListTraining(self, request: Any, context: Any) -> api.Training:  # noqa: N802
        return api.Training()


@contextlib.asynccontextmanager
async def told(context: Any) -> AsyncIterator[None]:
    """Give the client each error of ours, as it stands."""
    try:
        yield
    except EntrainError as error:
        await context.abort(code(error), sendable(str(error)))


def code(error: EntrainError) -> grpc.StatusCode:
    """Return the status with which the client gets an error."""
    if isinstance(error, BadInput):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, Denied):
        return grpc.StatusCode.PERMISSION_DENIED
    if isinstance(error, TooMany):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.FAILED_PRECONDITION


def topology_hash(topology: Topology) -> str:
    """Return a fingerprint, which is equal for two topologies if and only if they are equal."""
    return hashlib.sha256(repr(topology).encode()).hexdigest()
