"""A P4Runtime server without a switch: arbitration, pipeline, entities in a dictionary, packets echoed.

It keeps to the specification where the controller depends on it, and counts what it is asked, so that tests
can state that nothing was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_status
from google.protobuf import any_pb2

from controlplane.entities import key_of


class FakeSwitch(p4r_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """One device. `refuse` is asked about each update; a reason refuses it."""

    def __init__(self, device_id: int = 1) -> None:
        self.device_id = device_id
        self.entities: dict[bytes, Any] = {}
        self.config: Any = None
        self.batches: list[list[Any]] = []
        self.pipelines_set = 0
        self.reads = 0
        self.refuse: Callable[[Any], str | None] = lambda _: None
        self.refuse_pipeline: str | None = None
        self.answer: Callable[[Any], Any | None] = lambda _: None
        self.hangs = False
        """Whether writes stay without an answer."""
        self.silent = False
        """Whether it says nothing at all."""
        self.questions = 0
        self.streams = 0
        self.port = 0
        self._highest = 0
        self._streams: dict[asyncio.Queue[Any], int] = {}
        self._server: Any = None

    async def start(self) -> None:
        """Serve on `self.port` (0: a free one, kept for later starts)."""
        # As Stratum: a Tofino's pipeline is close to gRPC's own limit of 4 MiB.
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 256 << 20)])
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Break all connections."""
        await self._server.stop(None)
        self._streams.clear()

    def break_streams(self) -> None:
        """Break the stream of each controller, and let what it else asks go on."""
        for queue in self._streams:
            queue.put_nowait("broken")

    async def lose_everything(self) -> None:
        """What a restart does: no pipeline, no entities, nobody was ever primary."""
        await self.stop()
        self._forget()
        await self.start()

    def _forget(self) -> None:
        self.entities, self.config, self._highest = {}, None, 0

    # -- P4Runtime

    async def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.questions += 1
        await self._said()
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.4.0")

    async def StreamChannel(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.streams += 1

        async def receive() -> None:
            async for request in requests:
                await self._said()
                if request.HasField("arbitration"):
                    self._arbitrate(queue, request.arbitration)
                elif request.HasField("packet") and (reply := self._packet(request.packet)) is not None:
                    queue.put_nowait(reply)
            queue.put_nowait(None)

        receiver = asyncio.create_task(receive())
        try:
            while (message := await queue.get()) is not None:
                if isinstance(message, str):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
                yield message
        finally:
            receiver.cancel()
            was_primary = self._primary() is queue
            self._streams.pop(queue, None)
            if was_primary:
                for other in self._streams:
                    self._notify(other)

    def _packet(self, packet: Any) -> Any | None:
        reply = self.answer(packet)
        return None if reply is None else p4r.StreamMessageResponse(packet=reply)

    def _arbitrate(self, queue: asyncio.Queue[Any], update: Any) -> None:
        election_id = U128.decode(update.election_id)
        if update.device_id != self.device_id:
            queue.put_nowait(f"this is device {self.device_id}, not {update.device_id}")
            return
        if any(taken == election_id for other, taken in self._streams.items() if other is not queue):
            queue.put_nowait("election id is already used")
            return
        self._streams[queue] = election_id
        before = self._highest
        self._highest = max(before, election_id)
        for other in self._streams if self._highest != before else [queue]:
            self._notify(other)

    def _primary(self) -> asyncio.Queue[Any] | None:
        return next((queue for queue, taken in self._streams.items() if taken == self._highest), None)

    def _notify(self, queue: asyncio.Queue[Any]) -> None:
        primary = self._primary()
        code = grpc.StatusCode.ALREADY_EXISTS
        if primary is None:
            code = grpc.StatusCode.NOT_FOUND
        elif primary is queue:
            code = grpc.StatusCode.OK
        update = p4r.MasterArbitrationUpdate(
            device_id=self.device_id, election_id=U128.encode(self._highest), status={"code": code.value[0]}
        )
        queue.put_nowait(p4r.StreamMessageResponse(arbitration=update))

    async def _said(self) -> None:
        while self.silent:
            await asyncio.sleep(0.01)

    async def _check(self, request: Any, context: Any, *, pipeline: bool = True) -> None:
        await self._said()
        if hasattr(request, "election_id") and (
            self._primary() is None or U128.decode(request.election_id) != self._highest
        ):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")
        if pipeline and self.config is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check(request, context, pipeline=False)
        if self.refuse_pipeline is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse_pipeline)
        self.config, self.entities = request.config, {}
        self.pipelines_set += 1
        return p4r.SetForwardingPipelineConfigResponse()

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check(request, context)
        return p4r.GetForwardingPipelineConfigResponse(config={"cookie": self.config.cookie})

    async def Read(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await self._check(request, context)
        self.reads += 1
        kinds = {entity.WhichOneof("entity") for entity in request.entities}
        found = [entity for entity in self.entities.values() if entity.WhichOneof("entity") in kinds]
        found += [
            entity for entity in request.entities if entity.counter_entry.HasField("index")
        ]  # all are 0
        yield p4r.ReadResponse(entities=found)

    async def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check(request, context)
        self.batches.append(list(request.updates))
        while self.hangs:
            await asyncio.sleep(0.01)
        errors = [self.refuse(update) or self._apply(update) for update in request.updates]
        if any(errors):
            status = rpc_status.Status(code=grpc.StatusCode.UNKNOWN.value[0], message="some updates failed")
            for error in errors:
                detail = any_pb2.Any()
                code = grpc.StatusCode.INVALID_ARGUMENT.value[0] if error else 0
                detail.Pack(p4r.Error(canonical_code=code, message=error or ""))
                status.details.append(detail)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return p4r.WriteResponse()

    def _apply(self, update: Any) -> str | None:
        key = key_of(update.entity)
        if (update.type == p4r.Update.INSERT) == (key in self.entities):
            return "exists already" if key in self.entities else "does not exist"
        if missing := self._dangling(update.entity):
            return missing
        if update.type == p4r.Update.DELETE:
            del self.entities[key]
        else:
            self.entities[key] = update.entity
        return None

    def _dangling(self, entity: Any) -> str | None:
        """References must resolve, so that the order within a batch is tested too."""
        kept = self.entities.values()
        members = {e.action_profile_member.member_id for e in kept if e.HasField("action_profile_member")}
        groups = {e.action_profile_group.group_id for e in kept if e.HasField("action_profile_group")}
        if any(member.member_id not in members for member in entity.action_profile_group.members):
            return "no such member"
        group = entity.table_entry.action.action_profile_group_id
        return "no such group" if group and group not in groups else None
