"""The controller's gRPC API (`api.proto`), served for a fabric on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import grpc

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane.fabric import Applied, Fabric
from controlplane.loads import LoadReader
from controlplane.network import Port, Topology
from controlplane.pipeline import Pipeline
from controlplane.routing import ECN_THRESHOLD_PACKETS, FabricPolicy, Routing, desired_state
from controlplane.store import Store
from machine.errors import BadInput, EntrainError


class Controller(api_grpc.ControllerServicer):
    """Controls the fabric of one running network, and serves its API.

    `stopped` is set when a client requests Shutdown. As a context manager, it keeps the switches connected.
    """

    def __init__(
        self,
        topology: Topology,
        routing: Routing,
        *,
        namespace: str = "",
        store: Store | None = None,
        ecn_threshold_packets: int | Callable[[Port], int] = ECN_THRESHOLD_PACKETS,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.topology = topology
        self.stopped = asyncio.Event()
        self._routing: Routing = routing
        self._namespace = namespace
        self._store = store
        self._ecn_threshold_packets = ecn_threshold_packets
        self._on_event = on_event
        self._deploying = asyncio.Lock()
        self._fabric: Fabric
        self._loads: LoadReader

    async def __aenter__(self) -> Controller:
        await self._open(Pipeline.load())
        try:
            await self.deploy(self._routing)
        except BaseException:
            await self._fabric.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fabric.close()

    async def _open(self, pipeline: Pipeline, *, strict: bool = True) -> None:
        self._fabric = Fabric(
            self.topology, pipeline, store=self._store, strict=strict, on_event=self._on_event
        )
        self._loads = LoadReader(self._fabric)
        await self._fabric.__aenter__()

    async def deploy(self, routing: Routing, pipeline: Pipeline | None = None) -> list[Applied]:
        """Set the pipeline and the desired state on every switch. Only the fabric's program gets entries.

        Raises the error of a switch that fails, after restoring the previous pipeline and state.
        """
        if routing not in get_args(Routing):
            raise BadInput(f"routing {routing!r}: use {' or '.join(get_args(Routing))}")
        async with self._deploying:
            before = self._fabric.pipeline
            try:
                if pipeline is not None and pipeline.cookie != before.cookie:
                    await self._fabric.close()
                    await self._open(pipeline)
                applied = await apply_routing(self._fabric, self._policy(routing))
            except EntrainError:
                if self._fabric.pipeline is not before:
                    await self._fabric.close()
                    await self._open(before, strict=False)
                    with contextlib.suppress(EntrainError):
                        await apply_routing(self._fabric, self._policy(self._routing))
                raise
            self._routing = routing
            return applied

    def _policy(self, routing: Routing) -> FabricPolicy:
        return FabricPolicy(routing=routing, ecn_threshold_packets=self._ecn_threshold_packets)

    # -- the API

    async def GetNetwork(self, request: Any, context: Any) -> api.Network:  # noqa: N802
        statuses = self._fabric.statuses()
        return api.Network(
            name=self.topology.name,
            routing=self._routing,
            namespace=self._namespace,
            process_id=os.getpid(),
            topology_hash=topology_hash(self.topology),
            program=self._fabric.pipeline.name,
            switches=[
                api.Switch(
                    name=switch.name,
                    role=switch.role,
                    target=switch.target,
                    device_id=switch.device_id,
                    grpc_address=switch.grpc_address,
                    status=statuses[switch.name],
                )
                for switch in self.topology.switches
            ],
        )

    async def Deploy(self, request: api.DeployRequest, context: Any) -> api.Deployed:  # noqa: N802
        began = time.monotonic()
        try:
            pipeline = None
            if request.program:
                pipeline = Pipeline.load(Path(request.p4info), Path(request.program))
            applied = await self.deploy(request.routing or self._routing, pipeline)  # type: ignore[arg-type]
        except EntrainError as error:
            await context.abort(_code(error), str(error))
        switches = [_applied(one) for one in applied]
        return api.Deployed(switches=switches, seconds=time.monotonic() - began)

    async def WatchLoads(  # noqa: N802
        self, request: api.WatchLoadsRequest, context: Any
    ) -> AsyncIterator[api.Loads]:
        due = time.monotonic()
        while True:
            ports, problem = [], ""
            try:
                ports = await self._loads.read()
            except EntrainError as error:
                if not request.interval_ms:
                    await context.abort(_code(error), str(error))
                problem = str(error)
            yield api.Loads(
                unix_ns=time.time_ns(),
                problem=problem,
                ports=[
                    api.PortLoad(
                        switch=port.switch,
                        port=port.port,
                        peer=port.peer,
                        capacity_mbps=port.capacity_mbps,
                        slots=[api.SlotLoad(slot=slot, load_mbps=load) for slot, load in port.slots.items()],
                    )
                    for port in ports
                ],
            )
            if not request.interval_ms:
                return
            due = max(due + request.interval_ms / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def Shutdown(self, request: Any, context: Any) -> api.ShuttingDown:  # noqa: N802
        self.stopped.set()
        return api.ShuttingDown(process_id=os.getpid())


async def apply_routing(fabric: Fabric, policy: FabricPolicy) -> list[Applied]:
    """Bring a fabric into the state of `policy`. If it runs another program, leave its tables alone."""
    if not fabric.pipeline.is_fabric:
        return list(fabric.last_applied().values())
    return await fabric.apply(desired_state(fabric.topology, policy), routing=policy.routing)


def topology_hash(topology: Topology) -> str:
    """Return a fingerprint, which is equal for two topologies if and only if they are equal."""
    return hashlib.sha256(repr(topology).encode()).hexdigest()


async def serve(controller: Controller, socket: Path) -> grpc.aio.Server:
    """Serve the API on a Unix socket that only its owner can use. The caller stops the returned server."""
    server = grpc.aio.server()
    api_grpc.add_ControllerServicer_to_server(controller, server)
    umask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
    finally:
        os.umask(umask)
    return server


def _code(error: EntrainError) -> grpc.StatusCode:
    if isinstance(error, BadInput):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.FAILED_PRECONDITION


def _applied(applied: Applied) -> api.Applied:
    fields = asdict(applied)
    return api.Applied(name=fields.pop("switch"), **fields)
