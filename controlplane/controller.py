"""The controller's gRPC API (`api.proto`), served for a fabric on a Unix socket and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

import grpc

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane import messages, requests, roles
from controlplane.admission import Admission, Circuits, Failures, Step, in_one_line
from controlplane.cluster import ClusterSetup, failures, hosts_by_gpu
from controlplane.fabric import Applied, Fabric
from controlplane.ledger import Entry, Ledger
from controlplane.network import Port, Topology
from controlplane.pipeline import Pipeline
from controlplane.readings import ReadCounters, Readings, ReadQueues, told
from controlplane.roles import Access
from controlplane.routing import ECN_THRESHOLD_PACKETS, FabricPolicy, Routing, desired_state
from controlplane.store import Store
from controlplane.tables import Tables
from controlplane.tenants import Tenant, cluster_state
from machine import peers
from machine.address import check_socket
from machine.callers import Denied, Guard
from machine.errors import BadInput, EntrainError
from machine.requests import checked
from machine.tls import SERVER_OPTIONS, add_port
from schedulers.placement.cluster import Request, empty

OWNERS = Access()
"""The API is its owner's alone."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 64 << 10),  # requests have names and paths
    ("grpc.max_concurrent_streams", 64),  # of one connection
    *SERVER_OPTIONS,
)


class Controller(Readings):
    """Controls the fabric of one running network, and serves its API.

    `stopped` is set when a client requests Shutdown. As a context manager, it keeps the switches connected.

    With a `cluster` the network belongs to jobs, which `admission` admits; their ledger is the file `ledger`.
    `circuits` is the cluster's optical circuit switch. If not `strict`, it starts though switches are not
    ready, and `statuses` of the fabric tell. `pipeline` is by default the fabric's program for softswitch and
    BMv2; `deploy` can replace it. `host_processes` has, by emulated host, a process in its network namespace.
    `access` says who may call. `queues` and `counters` read those of an emulated network, and `training` what
    jobs on its hosts have recorded.
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
        cluster: ClusterSetup | None = None,
        ledger: Ledger | None = None,
        circuits: Circuits | None = None,
        on_step: Callable[[Entry, Step], None] = lambda *_: None,
        strict: bool = True,
        pipeline: Pipeline | None = None,
        host_processes: Mapping[str, int] | None = None,
        access: Access = OWNERS,
        queues: ReadQueues = lambda: (),
        training: Callable[[], Sequence[api.TrainingJob]] = lambda: (),
        counters: ReadCounters = dict,
    ) -> None:
        super().__init__(topology, routing, namespace, host_processes or {}, on_event, queues, counters)
        self.access = access
        self._training = training
        self.stopped = asyncio.Event()
        self.admission: Admission | None = None
        if cluster is not None:
            assert ledger is not None, "a cluster has a ledger of its jobs"
            self.admission = Admission(
                empty(cluster.cluster),
                hosts_by_gpu(topology),
                cluster.strategy,
                ledger,
                _FabricOf(self),
                circuits,
                order=cluster.order,
                backfill=cluster.backfill,
                share=cluster.gpus_per_submitter,
                most_jobs=cluster.jobs_per_submitter,
                on_step=self._stepped,
                on_event=self.note,
            )
        self._cluster = cluster
        self._circuits = circuits
        self._tenants: tuple[Tenant, ...] = ()
        self._strict = strict
        self._first_pipeline = pipeline
        self._store = store
        self._ecn_threshold_packets = ecn_threshold_packets
        self._on_step = on_step
        self._deploying = asyncio.Lock()
        self._watching = contextlib.AsyncExitStack()
        self._tables: Tables

    async def __aenter__(self) -> Controller:
        await self._open(self._first_pipeline or Pipeline.load(), strict=self._strict)
        try:
            if self.admission is None:
                await self.deploy(self._routing)
            else:
                await self.admission.__aenter__()
                if self._strict and self.admission.problem:
                    await self.admission.__aexit__()
                    raise EntrainError(self.admission.problem)
        except BaseException:
            await self._fabric.close()
            raise
        await self._watching.enter_async_context(self.watching(self.topology.slot_ms))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._watching.aclose()
        if self.admission is not None:
            await self.admission.__aexit__()
        await self._fabric.close()

    async def _open(self, pipeline: Pipeline, *, strict: bool = True) -> None:
        self._read(
            Fabric(self.topology, pipeline, store=self._store, strict=strict, on_event=self._on_switch)
        )
        if self._cluster is not None and pipeline.is_fabric:
            self._tables = Tables(self._fabric, self._policy(self._routing))
        await self._fabric.__aenter__()

    def _on_switch(self, event: str) -> None:
        self.note(event)
        if self.admission is not None:
            self.admission.look()

    def _stepped(self, entry: Entry, step: Step) -> None:
        self.note(f"job {entry.name}: {step}")
        self._on_step(entry, step)

    async def deploy(self, routing: Routing, pipeline: Pipeline | None = None) -> list[Applied]:
        """Set the pipeline and the desired state on every switch. Only the fabric's program gets entries.

        Raises the error of a switch that fails, after restoring the previous pipeline and state.
        """
        if routing not in get_args(Routing):
            raise BadInput(f"routing {routing!r}: use {' or '.join(get_args(Routing))}")
        if self._cluster is not None and routing != self._cluster.strategy.routing:
            raise BadInput(
                f"routing {routing!r}: strategy {self._cluster.strategy.name} of this cluster routes by "
                f"{self._cluster.strategy.routing}; choose another strategy in [cluster]"
            )
        async with self._deploying:
            before = self._fabric.pipeline
            try:
                if pipeline is not None and pipeline.cookie != before.cookie:
                    await self._fabric.close()
                    await self._open(pipeline)
                applied = await self._apply(routing)
            except EntrainError:
                if self._fabric.pipeline is not before:
                    await self._fabric.close()
                    await self._open(before, strict=False)
                    with contextlib.suppress(EntrainError):
                        await self._apply(self._routing)
                raise
            self._routing = routing
            return applied

    async def give(self, tenants: Sequence[Tenant], concerned: Sequence[Tenant]) -> None:
        """Let exactly these jobs have the network. Raises EntrainError, after restoring every switch.

        Only switches with entries of a job that this concerns must answer.
        """
        async with self._deploying:
            if not self._fabric.pipeline.is_fabric:
                raise EntrainError(self._fabric.lacking("VRFs"))
            await self._tables.apply(tenants, concerned)
            self._tenants = tuple(tenants)

    async def _apply(self, routing: Routing) -> list[Applied]:
        policy = self._policy(routing)
        if self._cluster is None or not self._fabric.pipeline.is_fabric:
            return await apply_routing(self._fabric, policy)
        return await self._fabric.apply(cluster_state(self.topology, policy, self._tenants), routing=routing)

    def _policy(self, routing: Routing) -> FabricPolicy:
        return FabricPolicy(routing=routing, ecn_threshold_packets=self._ecn_threshold_packets)

    def _asked(self, request: api.JobRequest) -> tuple[Request, float, float | None]:
        return messages.request_of(request, time.time(), self._cluster.patterns if self._cluster else ())

    def _owner(self, context: Any) -> str:
        """Return whose a job is that a call submits; empty for operators."""
        caller = self.access.caller(context)
        return caller.name if caller is not None else ""

    def _jobs(self) -> Admission:
        if self.admission is None:
            raise EntrainError(
                f"network {self.topology.name} is no cluster; add [cluster] to its file, and bring it up "
                f"again"
            )
        return self.admission

    def problem(self, admission: Admission) -> str:
        """Return what keeps jobs from being admitted or released, or else which switches may do so."""
        return admission.problem or in_one_line(self._fabric.problems())

    def failures(self) -> Failures:
        """Return what is lost with the switches that are not ready."""
        return failures(self.topology, self._fabric.statuses())

    # -- the API

    async def Deploy(self, request: api.DeployRequest, context: Any) -> api.Deployed:  # noqa: N802
        began = time.monotonic()
        async with told(context):
            asked = checked(requests.Deploy, request)
            pipeline = Pipeline.load(Path(asked.p4info), Path(asked.program)) if asked.program else None
            check_routes(asked.routing, pipeline or self._fabric.pipeline)
            applied = await self.deploy(cast("Routing", asked.routing or self._routing), pipeline)
            switches = [_applied(one) for one in applied]
            return api.Deployed(switches=switches, seconds=time.monotonic() - began)

    async def ListTraining(self, request: Any, context: Any) -> api.Training:  # noqa: N802
        return api.Training(jobs=self._training())

    async def Submit(self, request: api.JobRequest, context: Any) -> api.Job:  # noqa: N802
        async with told(context):
            admission = self._jobs()
            status = await admission.submit(*self._asked(request), self._owner(context))
            return messages.job(self.topology, status)

    async def SubmitAndWatch(  # noqa: N802
        self, request: api.JobRequest, context: Any
    ) -> AsyncIterator[api.Job]:
        async with told(context):
            admission = self._jobs()
            await admission.submit(*self._asked(request), self._owner(context))
            async for status in admission.watch(request.name):
                yield messages.job(self.topology, status)

    async def Place(self, request: api.JobRequest, context: Any) -> api.Plan:  # noqa: N802
        async with told(context):
            admission = self._jobs()
            found = admission.preview(*self._asked(request), self._owner(context))
            return messages.plan(self.topology, found, self.problem(admission))

    async def Cancel(self, request: api.CancelRequest, context: Any) -> api.Job:  # noqa: N802
        async with told(context):
            asked = checked(requests.Cancel, request)
            owner = self._owner(context)
            if owner and owner != self._jobs().owner_of(asked.name):
                raise Denied(
                    f"job {asked.name} is not {owner}'s; only its submitter or an operator cancels it"
                )
            status = await self._jobs().end(asked.name, "ended" if asked.ended else "cancelled")
            return messages.job(self.topology, status)

    async def ListJobs(self, request: api.ListJobsRequest, context: Any) -> api.Jobs:  # noqa: N802
        async with told(context):
            asked = checked(requests.ListJobs, request)
            admission = self._jobs()
            assert self._cluster is not None
            return api.Jobs(
                jobs=[messages.job(self.topology, status) for status in admission.jobs(past=asked.past)],
                problem=self.problem(admission),
                strategy=self._cluster.strategy.name,
                queue=self._cluster.order,
                gpus=self._cluster.cluster.gpus,
                free_gpus=admission.free_gpus,
            )

    async def WatchJobs(  # noqa: N802
        self, request: api.WatchJobsRequest, context: Any
    ) -> AsyncIterator[api.Job]:
        async with told(context):
            async for status in self._jobs().watch(checked(requests.WatchJobs, request).name):
                yield messages.job(self.topology, status)

    async def ListCircuits(self, request: Any, context: Any) -> api.Circuits:  # noqa: N802
        async with told(context):
            admission = self._jobs()
            if self._circuits is None:
                raise EntrainError(
                    f"network {self.topology.name} has no optical circuit switch; add an [ocs] table to its "
                    f"file"
                )
            return messages.circuits(
                self.topology, await self._circuits.joined(), admission.circuits(), admission.failures()
            )

    async def Shutdown(self, request: Any, context: Any) -> api.ShuttingDown:  # noqa: N802
        self.stopped.set()
        return api.ShuttingDown(process_id=os.getpid())


class _FabricOf:
    """The switches of a controller, which may connect to them anew."""

    def __init__(self, controller: Controller) -> None:
        self.apply = controller.give
        self._controller = controller

    def failures(self) -> Failures:
        """Return the GPUs and ports of switches that are not ready."""
        return self._controller.failures()


def check_routes(routing: str, pipeline: Pipeline) -> None:
    """Raise BadInput for a routing (empty: none is given) with a program that entrain does not fill."""
    if routing and not pipeline.is_fabric:
        raise BadInput(
            f"--routing {routing}: {pipeline.name} is not the fabric's program, and routes by tables of its "
            f"own; leave --routing out"
        )


async def apply_routing(fabric: Fabric, policy: FabricPolicy) -> list[Applied]:
    """Bring a fabric into the state of `policy`. If it runs another program, leave its tables alone."""
    if not fabric.pipeline.is_fabric:
        return await fabric.settle()
    return await fabric.apply(desired_state(fabric.topology, policy), routing=policy.routing)


@contextlib.asynccontextmanager
async def serving(
    service: api_grpc.ControllerServicer,
    socket: Path,
    access: Access,
    outside: Callable[[Callable[[], int]], int] = lambda call: call(),
) -> AsyncIterator[int | None]:
    """Within, serve the API on a Unix socket, and at `access.listen`, whose port it yields.

    `outside` makes a call in the network namespace where that address is.

    Only its owner can use the socket, or with users in `access`, all users of this machine can connect, and
    each gets the rights of his role. Raises EntrainError for an address that is taken, and BadInput for
    certificates that cannot be read.
    """
    inner = socket.parent / "inner"
    own = inner / "api.sock" if access.for_users else socket
    check_socket(own)
    guard = Guard(access.admit, roles.PLACES, access.identity if access.listen is not None else None)
    server = grpc.aio.server(options=_OPTIONS, interceptors=[guard])
    api_grpc.add_ControllerServicer_to_server(service, server)
    port = None
    if access.for_users:
        inner.mkdir(0o700, exist_ok=True)
        for above in (socket.parent, socket.parent.parent):  # whatever the umask, users can get to the socket
            above.chmod(above.stat().st_mode | 0o011)
    umask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{own}")
        if access.listen is not None:
            try:
                port = outside(functools.partial(add_port, server, access.listen, access.identity))
            except RuntimeError as error:
                raise EntrainError(
                    f"{access.listen}: cannot be served; choose another address for [controller], listen"
                ) from error
        await server.start()
    finally:
        os.umask(umask)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if access.for_users:
                await stack.enter_async_context(peers.admitting_async(socket, 0o666, own))
            yield port
    finally:
        await server.stop(1.0)


def _applied(applied: Applied) -> api.Applied:
    fields = asdict(applied)
    return api.Applied(name=fields.pop("switch"), **fields)
