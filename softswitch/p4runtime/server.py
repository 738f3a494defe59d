"""The P4Runtime service of one switch, on asyncio.

Requests, streams and packets share one thread and need no locks. Only setting a pipeline takes long: the
compiler and the kernel's verifier run in another thread, and writes wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc
from grpc import StatusCode

from machine.address import check_address
from machine.callers import ANYBODY, Bound, Caller, Guard, Places, certificate_of
from machine.errors import EntrainError
from machine.text import MOST_METADATA, sendable
from machine.tls import SERVER_OPTIONS, Identity, add_port, names_of
from softswitch.p4runtime import packet_io
from softswitch.p4runtime.arbitration import Arbitration, Notification
from softswitch.p4runtime.packet_io import CpuPort
from softswitch.p4runtime.status import (
    DETAILS_KEY,
    MOST_READ,
    SPACE,
    Refused,
    batch_status,
    internal,
    invalid,
    not_found,
)
from softswitch.p4runtime.switch import Pipeline, Switch

log = logging.getLogger(__name__)

API_VERSION = "1.4.1"
MAX_REQUEST = 16 << 20  # bytes
_MAX_RESPONSE = 128 << 20
_MOST_BESIDES = 600  # beside the details of a batch
_READ_CHUNK = 500  # entities per ReadResponse, which stays far below clients' limit of 4 MiB
_MOST_CALLS = 1024  # that are answered at a time, and as many streams
_MOST_CALLS_OF_ONE = 256  # connection; the others wait
_REFUSALS_PER_S = 50  # of one client; the others wait
_MAX_WAITING = 4096  # stream messages queued for a slow controller; further packets are dropped


class _Stream:
    """A controller's stream, and its queue of messages to send.

    None ends the stream, and Refused ends it with an error.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.waiting: asyncio.Queue[Any] = asyncio.Queue()

    def __str__(self) -> str:
        return self._peer


class P4RuntimeService:
    """Serves P4Runtime for `switch` as device `device_id`, in the default role and `roles`.

    With `clients`, it serves only those whose certificate has one of these subject alternative names.
    """

    def __init__(
        self,
        device_id: int,
        switch: Switch,
        cpu: CpuPort | None = None,
        roles: Iterable[str] = (),
        clients: Iterable[str] = (),
    ) -> None:
        self._device_id = device_id
        self._switch = switch
        self._cpu = cpu
        self._arbitration = Arbitration(device_id, roles)
        self._clients = frozenset(clients)
        self.dropped = 0  # messages to controllers that were too slow
        switch.send = self.broadcast

    def caller(self, context: Any, method: str) -> Caller:
        """Return who calls: an operator, or somebody who is refused, whatever the `method`."""
        if not self._clients:
            return ANYBODY
        name, names = certificate_of(context), names_of(context)
        if not self._clients.isdisjoint(names):
            return Caller(name, operator=True)
        known = ", ".join(names) or "nobody"
        served = ", ".join(sorted(self._clients))
        return Caller(name, refusal=f"the client's certificate is for {known}; this switch serves {served}")

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise not_found(f"this is device {self._device_id}, not {device_id}")

    def _pipeline(self) -> Pipeline:
        pipeline = self._switch.current
        if pipeline is None:
            raise Refused(
                StatusCode.FAILED_PRECONDITION, "no forwarding pipeline config is set for this device"
            )
        return pipeline

    # Unary calls and Read, named as in the service.

    async def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the version of P4Runtime that this server implements."""
        with _Answering(context) as answering:
            if request.device_id:
                self._check_device(request.device_id)
            return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)
        return await answering.abort()

    async def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Apply a batch of updates."""
        with _Answering(context) as answering:
            self._check_device(request.device_id)
            self._arbitration.check_primary(request)
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise Refused(StatusCode.UNIMPLEMENTED, "only atomicity CONTINUE_ON_ERROR is supported")
            async with self._switch.lock:
                self._arbitration.check_primary(request)
                errors = self._pipeline().entities.write(request.updates)
            if not any(errors):
                return p4r.WriteResponse()
            message, details = batch_status(errors)
            log.info("write: %s", message)
            answering.refuse_batch(message, details)
        return await answering.abort()

    async def Read(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Stream a consistent snapshot of the requested entities."""
        with _Answering(context) as answering:
            self._check_device(request.device_id)
            self._arbitration.check_role(request.role)
            pipeline = self._pipeline()
            found: list[Any] = []
            errors: list[Refused | None] = []
            for wanted in request.entities:
                error: Refused | None = None
                try:
                    found += islice(pipeline.entities.read(wanted), MOST_READ + 1 - len(found))
                except Refused as refused:
                    error = refused
                except EntrainError as failed:
                    error = Refused(StatusCode.INTERNAL, str(failed))
                except Exception:
                    log.exception("a read failed")
                    error = internal()
                errors.append(error)
                if len(found) > MOST_READ:
                    raise Refused(
                        StatusCode.RESOURCE_EXHAUSTED,
                        f"more than {MOST_READ} entities match: read one table, array or index at a time",
                    )
            for start in range(0, len(found), _READ_CHUNK):
                yield p4r.ReadResponse(entities=found[start : start + _READ_CHUNK])
            if any(errors):
                answering.refuse_batch(*batch_status(errors))
        if answering.refused:
            await answering.abort()

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Verify, save or commit a program."""
        with _Answering(context) as answering:
            self._check_device(request.device_id)
            self._arbitration.check_primary(request)
            # A controller that disconnects meanwhile must not leave a half-set pipeline.
            await asyncio.shield(self._set_pipeline(request))
            return p4r.SetForwardingPipelineConfigResponse()
        log.warning("pipeline refused: %s", answering.message)
        return await answering.abort()

    async def _set_pipeline(self, request: Any) -> None:
        async with self._switch.lock:
            self._arbitration.check_primary(request)
            config = request.config if request.HasField("config") else None
            await self._switch.set_pipeline(request.action, config)

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the config that reads and writes apply to; empty if there is none."""
        with _Answering(context) as answering:
            self._check_device(request.device_id)
            response = p4r.GetForwardingPipelineConfigResponse()
            pipeline = self._switch.current
            if pipeline is not None:
                kinds = p4r.GetForwardingPipelineConfigRequest
                config, kind = pipeline.config, request.response_type
                response.config.SetInParent()
                if config.HasField("cookie"):
                    response.config.cookie.CopyFrom(config.cookie)
                if kind in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
                    response.config.p4info.CopyFrom(config.p4info)
                if kind in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
                    response.config.p4_device_config = config.p4_device_config
                if kind not in kinds.ResponseType.values():
                    raise invalid(f"response_type {kind} is unknown")
            return response
        return await answering.abort()

    # The stream

    async def StreamChannel(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        """Serve a controller's session: arbitration, packets and digests."""
        stream = _Stream(context.peer())
        receiving = asyncio.create_task(self._receive(stream, requests))
        try:
            while (message := await stream.waiting.get()) is not None:
                if isinstance(message, Refused):
                    await context.abort(message.code, sendable(message.message))
                await context.write(message)
        finally:
            receiving.cancel()
            self._notify(self._arbitration.close(stream))
            log.info("controller %s has gone", stream)

    async def _receive(self, stream: _Stream, requests: AsyncIterator[Any]) -> None:
        end: Refused | None = None
        try:
            async for request in requests:
                self._take(stream, request)
        except Refused as refused:
            log.warning("controller %s: stream refused: %s", stream, refused.message)
            end = refused
        except Exception:
            log.exception("controller %s", stream)
            end = internal()
        finally:
            stream.waiting.put_nowait(end)

    def _take(self, stream: _Stream, request: Any) -> None:
        """Handle one stream message. Raises Refused to end the stream."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._notify(self._arbitration.update(stream, request.arbitration))
            return
        try:
            if not self._arbitration.is_primary(stream):
                raise Refused(
                    StatusCode.PERMISSION_DENIED, "not primary: only the primary controller may do this"
                )
            match kind:
                case "packet":
                    self._packet_out(request.packet)
                case "digest_ack":
                    self._pipeline().entities.digests.acknowledged(request.digest_ack)
                case _:
                    raise Refused(
                        StatusCode.UNIMPLEMENTED, f"stream messages of kind {kind} are not supported"
                    )
        except Refused as refused:
            response = p4r.StreamMessageResponse()
            error = response.error
            error.canonical_code, error.message = refused.code.value[0], refused.message
            error.space = SPACE
            match kind:
                case "packet":
                    error.packet_out.packet_out.CopyFrom(request.packet)
                case "digest_ack":
                    error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                case _:
                    error.other.other.CopyFrom(request.other)
            self._send(stream, response)

    def _packet_out(self, message: Any) -> None:
        committed = self._switch.committed
        if committed is None:
            raise Refused(
                StatusCode.FAILED_PRECONDITION, "packet-out: no forwarding pipeline config is committed"
            )
        if self._cpu is None:
            raise Refused(
                StatusCode.FAILED_PRECONDITION, "packet-out: this switch was started without --cpu-port"
            )
        packet = packet_io.to_packet(committed.info.packet_out, message)
        try:
            self._cpu.send(packet)
        except OSError as error:
            raise invalid(f"packet-out of {len(packet)} bytes: {error.strerror}") from error

    def packets_in(self) -> None:
        """Send the packets that wait at the CPU port to the primaries."""
        if self._cpu is None:
            return
        for packet in self._cpu.receive():
            committed = self._switch.committed
            message = (
                packet_io.to_message(committed.info.packet_in, packet) if committed is not None else None
            )
            if message is not None:
                self.broadcast(p4r.StreamMessageResponse(packet=message))

    def broadcast(self, message: Any) -> None:
        """Send a message to every primary."""
        for stream in self._arbitration.primaries():
            self._send(stream, message)

    def _notify(self, notifications: list[Notification]) -> None:
        for stream, message in notifications:
            stream.waiting.put_nowait(message)  # type: ignore[attr-defined]

    def _send(self, stream: Any, message: Any) -> None:
        if stream.waiting.qsize() >= _MAX_WAITING:
            self.dropped += 1
            return
        stream.waiting.put_nowait(message)


class _Answering:
    """Converts what a handler raises to the status of its call."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.refused = False
        self._code = StatusCode.UNKNOWN
        self.message = ""
        self._details: bytes | None = None

    def __enter__(self) -> _Answering:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, Refused):
            log.exception("a request failed", exc_info=error)
            error = internal()
        if not isinstance(error, Refused):
            return False
        self.refused, self._code, self.message = True, error.code, error.message
        return True

    def refuse_batch(self, message: str, details: bytes) -> None:
        """End the call with one error per update."""
        self.refused, self.message, self._details = True, message, details

    async def abort(self) -> Any:
        """End the call. Does not return."""
        trailers = ((DETAILS_KEY, self._details),) if self._details is not None else ()
        room = _MOST_BESIDES if trailers else MOST_METADATA
        await self._context.abort(self._code, sendable(self.message, room), trailers)


def listen(
    service: P4RuntimeService,
    address: str,
    max_request: int = MAX_REQUEST,
    identity: Identity | None = None,
) -> tuple[Any, int]:
    """Bind a grpc.aio server for `service` to `address` (HOST:PORT or unix:PATH). Return it and its port.

    Call `start` on it to serve: with an `identity`, over TLS and only clients with a certificate. A request
    of more than `max_request` bytes fails with RESOURCE_EXHAUSTED, and so do calls beyond `_MOST_CALLS`. Whom
    `service` does not serve is refused before the first message, and that has to come soon.
    Raises BadInput if the address is malformed or a certificate cannot be used, and EntrainError if the
    address is not available.
    """
    check_address(address)
    options = [
        ("grpc.so_reuseport", 0),  # otherwise a second switch would silently share the port
        ("grpc.max_receive_message_length", max_request),
        ("grpc.max_send_message_length", _MAX_RESPONSE),
        ("grpc.max_concurrent_streams", _MOST_CALLS_OF_ONE),
        ("grpc.http2.max_ping_strikes", 0),  # controllers may ping as often as they like
        *SERVER_OPTIONS,  # a controller whose machine has died must not stay primary
    ]
    operators = Bound(0, 0, _MOST_CALLS)  # nobody else is served
    places = Places(operators, operators, _REFUSALS_PER_S, _REFUSALS_PER_S)
    guard = Guard(service.caller, places, identity)
    server = grpc.aio.server(options=options, interceptors=[guard])
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server)
    try:
        port = add_port(server, address, identity)
    except RuntimeError as error:
        raise EntrainError(
            f"cannot listen on {address}: is the port free, and does the address belong to this machine?"
        ) from error
    return server, port
