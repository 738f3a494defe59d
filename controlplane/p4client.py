"""A P4Runtime client for one switch: arbitration, pipeline, reads, writes and packets.

Election ids tell the loser of an arbitration who won. The low 64 bits are the controller's process id, and
the high 64 bits increase with each change of primary. A controller first uses its bare process id, which is
lower than any claimed id, and claims the switch only if there is no primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
from finsy.proto import U128, p4r, p4r_grpc

from controlplane import constants as p4
from controlplane import heartbeat
from controlplane.entities import State, state_of, whole_state
from controlplane.network import Switch
from controlplane.pipeline import Pipeline
from machine import tls
from machine.errors import EntrainError
from machine.patience import patience

RPC_TIMEOUT_S = patience(30.0)
UPDATE_S = patience(0.01)
"""By how much each update of a batch lengthens the time limit `heartbeat.ANSWER_S`."""
PIPELINE_TIMEOUT_S = patience(120.0)
"""Time limit for setting a pipeline, which the switch may have to compile."""

CLOSE_TIMEOUT_S = patience(2.0)

OWN = frozenset(name for name in vars(p4).values() if isinstance(name, str))
"""Names of tables, action profiles and so on of the fabric's program."""

_CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 15_000),  # limit of an attempt: TLS over a slow link takes seconds
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),
]


class Unreachable(EntrainError):
    """The switch does not answer, or the connection has broken."""


class NotPrimary(EntrainError):
    """Another controller is primary for the switch."""


class Refused(EntrainError):
    """The switch refused a pipeline or an update."""


class NoPipeline(EntrainError):
    """The switch has no pipeline, or has lost it."""


class SwitchClient:
    """A connection to one switch, which does not reconnect. Use it in one event loop, and `close` it.

    It ends, with all that is asked on it, when it breaks or an answer does not come in time (`heartbeat`).
    `on_packet` receives the payload and metadata of each packet-in. `on_change` is called when `primary`
    changes and when the connection ends, `on_slow` with True when answers become slow, and with False when
    they no longer are. `identity`, by default our process id, is part of the election ids. `earlier` is the
    election id of our last connection: the switch may not have noticed that it has ended.
    """

    def __init__(
        self,
        switch: Switch,
        pipeline: Pipeline,
        *,
        on_packet: Callable[[fy.P4PacketIn], None] = lambda _: None,
        on_change: Callable[[], None] = lambda: None,
        on_slow: Callable[[bool], None] = lambda _: None,
        identity: int | None = None,
        earlier: int = 0,
    ) -> None:
        self.switch = switch
        self.primary = False
        self.primary_id = 0
        self._pipeline = pipeline
        self._on_packet = on_packet
        self._on_change = on_change
        self._on_slow = on_slow
        self._identity = os.getpid() if identity is None else identity
        self._election_id = self._identity
        self._earlier = earlier
        self._end = "the connection broke"
        self._channel = tls.open_channel(
            grpc.aio, switch.grpc_address, _CHANNEL_OPTIONS, switch.operator, switch.name
        )
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._stream: Any = None
        # gRPC allows one write at a time, and a cancelled write ends the stream. So a single task writes.
        self._outgoing: asyncio.Queue[p4r.StreamMessageRequest] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    # -- connection and arbitration

    async def connect(self, timeout_s: float | None) -> None:
        """Open the stream and try to become primary: see `self.primary`. None waits forever.

        Raises Unreachable if the switch does not answer within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
        except TimeoutError:
            trust = self.switch.certificates
            raise Unreachable(
                f"{self._name}: does not answer P4Runtime within {timeout_s:g} s; is the switch running"
                + (
                    f", and has it a certificate with its name from {trust / tls.AUTHORITY}?"
                    if trust
                    else "?"
                )
            ) from None
        except grpc.RpcError as error:
            raise self._broken(error) from None
        self._tasks = [
            asyncio.create_task(self._read_stream()),
            asyncio.create_task(self._write_stream()),
            asyncio.create_task(self._watch()),
        ]

    async def _open(self) -> None:
        self._stream = self._stub.StreamChannel(wait_for_ready=True)
        await self._stream.write(self._bid())
        while True:
            message = await self._stream.read()
            if message is grpc.aio.EOF:
                raise Unreachable(f"{self._name}: closed the stream during arbitration")
            if message.WhichOneof("update") != "arbitration":
                continue
            self._take(message.arbitration)
            claimed = bool(self._election_id >> 64)
            if self.primary and claimed:
                return
            if message.arbitration.status.code == grpc.StatusCode.ALREADY_EXISTS.value[0]:
                if claimed and self.primary_id < self._election_id:
                    continue  # another controller asks too, but our claim is under way and wins
                if claimed or self.primary_id != self._earlier:
                    return
            # There is no primary, or we are: by the bare id, which no other can undercut, or by the last one.
            await self._stream.write(self._claim())

    def _bid(self) -> p4r.StreamMessageRequest:
        election_id = U128.encode(self._election_id)
        update = p4r.MasterArbitrationUpdate(device_id=self.switch.device_id, election_id=election_id)
        return p4r.StreamMessageRequest(arbitration=update)

    def _claim(self) -> p4r.StreamMessageRequest:
        self._election_id = ((self.primary_id >> 64) + 1) << 64 | self._identity
        return self._bid()

    def _take(self, update: p4r.MasterArbitrationUpdate) -> None:
        self.primary_id = U128.decode(update.election_id)
        self.primary = update.status.code == 0 and self.primary_id == self._election_id

    async def _read_stream(self) -> None:
        try:
            while (message := await self._stream.read()) is not grpc.aio.EOF:
                match message.WhichOneof("update"):
                    case "packet":
                        with contextlib.suppress(ValueError, KeyError):  # of another program's pipeline
                            self._on_packet(fy.P4PacketIn.decode(message, self._pipeline.schema))
                    case "arbitration":
                        self._arbitration(message.arbitration)
        except grpc.RpcError as error:
            self._end = f"the connection broke: {error.details()}"
        finally:
            await self._channel.close()  # ends whatever else is asked
            self.primary = False
            self._on_change()

    async def _write_stream(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await self._stream.write(await self._outgoing.get())

    def _arbitration(self, update: p4r.MasterArbitrationUpdate) -> None:
        before = self.primary
        self._take(update)
        if update.status.code == grpc.StatusCode.NOT_FOUND.value[0]:
            self._outgoing.put_nowait(self._claim())
        elif before != self.primary:
            self._on_change()

    async def _watch(self) -> None:
        """End the connection when the switch is silent."""
        try:
            await heartbeat.keep_asking(self._ask, self._on_slow)
        except Unreachable:
            pass
        except Exception as error:  # never stop asking silently
            self._end = repr(error)
        self._stream.cancel()

    async def _ask(self) -> None:
        """Return when the switch answers, whatever it says. Raises Unreachable."""
        request = p4r.CapabilitiesRequest(device_id=self.switch.device_id)
        with contextlib.suppress(NotPrimary, Refused, NoPipeline), self._errors():
            await self._stub.Capabilities(request, timeout=heartbeat.ANSWER_S)

    @property
    def election_id(self) -> int:
        """The id by which it is primary, or has asked to be."""
        return self._election_id

    @property
    def connected(self) -> bool:
        """Whether the stream is open."""
        return bool(self._tasks) and not self._tasks[0].done()

    def ended(self) -> Unreachable:
        """Return the error that says why the connection has ended."""
        return Unreachable(f"{self._name}: {self._end}; waiting for the switch to come back")

    def not_primary(self) -> NotPrimary:
        """Return the error that says who is primary."""
        return NotPrimary(f"{self._name}: another controller is primary: {describe_primary(self.primary_id)}")

    async def close(self) -> None:
        """End the connection. The switch keeps its state.

        Wait for the switch to notice, so that the next client does not find us still primary.
        """
        if self.connected:
            reader, *others = self._tasks
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await self._stream.done_writing()
                await asyncio.wait([reader], timeout=CLOSE_TIMEOUT_S)
        if self._stream is not None:
            self._stream.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    # -- requests

    async def set_pipeline(self, *, force: bool = False) -> bool:
        """Set the pipeline unless the switch runs it already. Return whether it was set. Raises Refused."""
        if not force:
            request = p4r.GetForwardingPipelineConfigRequest(
                device_id=self.switch.device_id,
                response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY,
            )
            with contextlib.suppress(NoPipeline), self._errors():
                reply = await self._stub.GetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT_S)
                if reply.config.cookie.cookie == self._pipeline.cookie:
                    return False
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self.switch.device_id,
            election_id=U128.encode(self._election_id),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=self._pipeline.schema.get_pipeline_config(),
        )
        with self._errors(lambda _: f"refused the pipeline {self._pipeline.name}"):
            await self._stub.SetForwardingPipelineConfig(request, timeout=PIPELINE_TIMEOUT_S)
        return True

    async def read(self, entities: Sequence[Any]) -> list[p4r.Entity]:
        """Return the switch's entities that match `entities` (with P4Runtime's wildcards), undecoded."""
        request = p4r.ReadRequest(
            device_id=self.switch.device_id,
            entities=[entity.encode(self._pipeline.schema) for entity in entities],
        )
        found: list[p4r.Entity] = []
        with self._errors(lambda _: "refused to be read"):
            async for reply in self._stub.Read(request, timeout=RPC_TIMEOUT_S):
                found += reply.entities
        return found

    async def read_state(self) -> State:
        """Return all table entries, members and groups that a controller can change."""
        schema = self._pipeline.schema
        return state_of(await self.read(tuple(whole_state(schema))), schema)

    def kept(self, state: State) -> State:
        """Return the part of a state that is in tables and action profiles unknown to entrain."""
        schema = self._pipeline.schema
        tables = {table.id for table in schema.tables if table.name not in OWN}
        profiles = {profile.id for profile in schema.action_profiles if profile.name not in OWN}
        if not tables and not profiles:
            return {}

        def is_kept(entity: p4r.Entity) -> bool:
            if entity.HasField("table_entry"):
                return entity.table_entry.table_id in tables
            if entity.HasField("action_profile_member"):
                return entity.action_profile_member.action_profile_id in profiles
            return entity.action_profile_group.action_profile_id in profiles

        return {key: entity for key, entity in state.items() if is_kept(entity)}

    async def write(self, updates: Sequence[p4r.Update]) -> None:
        """Write one batch. Raises Refused, naming each refused update and the switch's reason."""
        request = p4r.WriteRequest(
            device_id=self.switch.device_id, election_id=U128.encode(self._election_id), updates=updates
        )
        with self._errors(lambda error: self._describe(error, updates)):
            await self._stub.Write(request, timeout=heartbeat.ANSWER_S + UPDATE_S * len(updates))

    def send_packet(self, payload: bytes, **metadata: int) -> None:
        """Send a packet-out, with the controller header's fields as `metadata`. Raises Unreachable."""
        if not self.connected:
            raise self.ended()
        packet = fy.P4PacketOut(payload, **metadata)
        self._outgoing.put_nowait(packet.encode_update(self._pipeline.schema))

    # -- errors

    @property
    def _name(self) -> str:
        return f"{self.switch.name} ({self.switch.target} at {self.switch.grpc_address})"

    @contextlib.contextmanager
    def _errors(
        self, what: Callable[[grpc.RpcError], str] = lambda _: "refused the request"
    ) -> Iterator[None]:
        """Raise our errors for gRPC's.

        When the connection ends, so does what others still ask on it. For them gRPC raises CancelledError,
        which would end their tasks as if somebody had cancelled these.
        """
        try:
            yield
        except grpc.RpcError as error:
            raise self._broken(error, what(error)) from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self.ended() from None

    def _broken(self, error: grpc.RpcError, what: str = "refused the request") -> EntrainError:
        assert isinstance(error, grpc.aio.AioRpcError)
        code, details = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unreachable(f"{self._name}: the connection broke: {details}")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            self._end = "gave no answer in time"
            self._stream.cancel()
            return self.ended()
        if code == grpc.StatusCode.PERMISSION_DENIED:
            if self.primary_id != self._election_id:
                return self.not_primary()
            return NotPrimary(f"{self._name}: {what}, though this controller is primary: {details}")
        if code == grpc.StatusCode.FAILED_PRECONDITION and "pipeline" in details.lower():
            return NoPipeline(f"{self._name}: has no pipeline: {details}")
        return Refused(f"{self._name}: {what}: {details or code.name}")

    def _describe(self, error: grpc.RpcError, updates: Sequence[p4r.Update]) -> str:
        """Which updates of a batch were refused, and why."""
        failed = fy.P4ClientError(error, "Write").details
        lines = [
            f"\n  {_update_text(updates[index], self._pipeline.schema)}: {detail.message}"
            for index, detail in sorted(failed.items())[:5]
        ]
        more = f"\n  and {len(failed) - 5} more" if len(failed) > 5 else ""
        return f"refused {len(failed) or 'some'} of {len(updates)} updates" + "".join(lines) + more


def _update_text(update: p4r.Update, schema: fy.P4Schema) -> str:
    verb = p4r.Update.Type.Name(update.type).lower()
    entity = update.entity
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = fy.P4TableEntry.decode(entity, schema)
            return f"{verb} {entry.table_id} {entry.match_str(schema)} -> {entry.action_str(schema)}"
        case "action_profile_member":
            member = fy.P4ActionProfileMember.decode(entity, schema)
            return f"{verb} {member.action_profile_id} member {member.member_id}"
        case "action_profile_group":
            group = fy.P4ActionProfileGroup.decode(entity, schema)
            return f"{verb} {group.action_profile_id} group {group.group_id}"
        case other:
            return f"{verb} {other}"


def describe_primary(election_id: int) -> str:
    """Return the holder of an election id, as far as the id tells."""
    generation, pid = election_id >> 64, election_id & (2**64 - 1)
    if not generation:
        return f"election id {election_id}, which is not one of entrain's"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return f"process {pid}, which has ended or is on another machine (election id {generation}:{pid})"
    return f"process {pid} (election id {generation}:{pid}), {' '.join(_shown(command))}"


def _shown(command: Iterable[str]) -> list[str]:
    words = [word for word in command if word]
    return [Path(words[0]).name, *words[1:]][:6] if words else []
