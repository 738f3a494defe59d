"""What the server's tests share: the feature program, messages by name, a switch on a fake datapath."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from machine.tls import Identity, open_channel
from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath
from softswitch.p4runtime import server
from softswitch.p4runtime.entities.device import Entities
from softswitch.p4runtime.p4info import P4Info
from softswitch.p4runtime.switch import Switch
from tests.softswitch.fake_datapath import FakeDatapath

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = (PROGRAMS / "features.json").read_bytes()
P4INFO = text_format.Parse((PROGRAMS / "features.p4info.txtpb").read_text(), p4i.P4Info())
IDS = {
    item.preamble.name.rpartition(".")[2]: item.preamble.id
    for kind in P4INFO.DESCRIPTOR.fields
    if kind.is_repeated
    for item in getattr(P4INFO, kind.name)
    if hasattr(item, "preamble")
}
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
DEVICE = 7


def config(cookie: int = 1) -> Any:
    """The feature program as a forwarding pipeline config."""
    made = p4r.ForwardingPipelineConfig(p4info=P4INFO, p4_device_config=PROGRAM)
    made.cookie.cookie = cookie
    return made


def octets(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def action(name: str, *args: int) -> Any:
    """A p4.v1.Action."""
    made = p4r.Action(action_id=IDS[name])
    for id_, value in enumerate(args, 1):
        made.params.add(param_id=id_, value=octets(value))
    return made


def entry(table: str, matches: dict[int, Any] | None = None, does: Any = None, **fields: Any) -> Any:
    """A TableEntry. A match is an int (exact), or (kind, slot=value...) as keywords of FieldMatch."""
    made = p4r.TableEntry(table_id=IDS[table], **fields)
    for id_, value in (matches or {}).items():
        match = made.match.add(field_id=id_)
        if isinstance(value, int):
            match.exact.value = octets(value)
        else:
            kind, slots = value
            for slot, number in slots.items():
                setattr(getattr(match, kind), slot, number if slot == "prefix_len" else octets(number))
    if does is not None:
        made.action.action.CopyFrom(does)
    return made


def l2(dst: int, port: int = 1, **fields: Any) -> Any:
    return entry("l2", {1: dst}, action("to_port", port), **fields)


def lpm(value: int, prefix_len: int) -> Any:
    return "lpm", {"value": value, "prefix_len": prefix_len}


def ternary(value: int, mask: int) -> Any:
    return "ternary", {"value": value, "mask": mask}


def entity(message: Any) -> Any:
    """The Entity around a message, by its type."""
    made = p4r.Entity()
    slot = next(f.name for f in made.DESCRIPTOR.fields if f.message_type is message.DESCRIPTOR)
    getattr(made, slot).CopyFrom(message)
    return made


def update(kind: int, message: Any) -> Any:
    return p4r.Update(type=kind, entity=entity(message))


@dataclass
class Bench:
    """Entities over a datapath, by default a fake one, without gRPC."""

    up: dict[int, bool] = field(default_factory=dict)
    sent: list[Any] = field(default_factory=list)
    datapath: Any = field(default_factory=lambda: FakeDatapath(PROGRAM))

    def __post_init__(self) -> None:
        self.entities = Entities(
            P4Info(P4INFO), self.datapath, lambda port: self.up.get(port, True), self.sent.append
        )

    def write(self, kind: int, message: Any) -> tuple[str, str] | None:
        """Code and message of the refusal, None for success."""
        refused = self.entities.write([update(kind, message)])[0]
        return None if refused is None else (refused.code.name, refused.message)

    def insert(self, *messages: Any) -> None:
        for message in messages:
            assert self.write(INSERT, message) is None

    def read(self, message: Any) -> list[Any]:
        """The messages inside of the entities that were read."""
        found = list(self.entities.read(entity(message)))
        return [getattr(e, e.WhichOneof("entity")) for e in found]


def kernel_datapath(name: str) -> Datapath:
    """The datapath that runs packets, without ports. Close it."""
    return Datapath.load(load_program(PROGRAM), name=name, netless=True)


class FakePorts:
    """Ports without interfaces."""

    def __init__(self) -> None:
        self.attached: list[Any] = []
        self.up: dict[int, bool] = {}

    def attach(self, datapath: Any) -> None:
        self.attached.append(datapath)

    def is_up(self, number: int) -> bool:
        return self.up.get(number, True)


class FakeCpu:
    """A CPU port: what was sent to it, and what it is to give."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.waiting: list[bytes] = []

    def send(self, packet: bytes) -> None:
        self.sent.append(packet)

    def receive(self) -> list[bytes]:
        taken, self.waiting = self.waiting, []
        return taken


class Controller:
    """A plain P4Runtime client."""

    def __init__(
        self,
        address: str,
        election_id: int | None = 1,
        role: str = "",
        identity: Identity | None = None,
        server_name: str = "",
    ) -> None:
        options: list[tuple[str, Any]] = [
            ("grpc.max_metadata_size", 64 * 1024),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = open_channel(grpc.aio, address, options, identity, server_name)
        self.stub = p4r_grpc.P4RuntimeStub(self._channel)
        self.election_id = election_id
        self.role = role
        self.stream: Any = None

    async def arbitrate(self, device_id: int = DEVICE, election_id: int | None = None, **role: Any) -> Any:
        """Send a MasterArbitrationUpdate and return the answer."""
        if election_id is not None:
            self.election_id = election_id
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = device_id
        if self.election_id is not None:
            request.arbitration.election_id.CopyFrom(U128.encode(self.election_id))
        if self.role:
            request.arbitration.role.name = self.role
        if self.stream is None:
            self.stream = self.stub.StreamChannel()
        with contextlib.suppress(grpc.aio.AioRpcError):  # refused meanwhile: reading says why
            await self.stream.write(request)
        return (await self.next()).arbitration

    async def next(self) -> Any:
        """The next stream message; grpc.aio.EOF or AioRpcError at the end."""
        return await asyncio.wait_for(self.stream.read(), 10)

    def _named(self, request: Any) -> Any:
        request.device_id = DEVICE
        request.role = self.role
        if self.election_id is not None:
            request.election_id.CopyFrom(U128.encode(self.election_id))
        return request

    async def set_pipeline(self, config_: Any = None, action_: str = "VERIFY_AND_COMMIT") -> None:
        request = self._named(p4r.SetForwardingPipelineConfigRequest())
        request.action = p4r.SetForwardingPipelineConfigRequest.Action.Value(action_)
        if config_ is not None:
            request.config.CopyFrom(config_)
        await self.stub.SetForwardingPipelineConfig(request)

    async def write(self, *updates: Any) -> None:
        await self.stub.Write(self._named(p4r.WriteRequest(updates=updates)))

    async def read(self, *messages: Any) -> list[Any]:
        request = p4r.ReadRequest(device_id=DEVICE, entities=[entity(m) for m in messages])
        return [e async for response in self.stub.Read(request) for e in response.entities]

    async def close(self) -> None:
        await self._channel.close()


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")


def details(error: grpc.aio.AioRpcError) -> list[tuple[int, str]]:
    """Code and message of each p4.v1.Error of a batch."""
    trailers = dict(error.trailing_metadata())
    status = rpc_status.Status.FromString(trailers["grpc-status-details-bin"])
    errors = []
    for detail in status.details:
        unpacked = p4r.Error()
        assert detail.Unpack(unpacked)
        errors.append((unpacked.canonical_code, unpacked.message))
    return errors


@dataclass
class Served:
    """A running server on a fake datapath."""

    address: str
    switch: Switch
    service: server.P4RuntimeService
    ports: FakePorts
    cpu: FakeCpu
    loaded: list[FakeDatapath]
    controllers: list[Controller] = field(default_factory=list)

    def controller(self, election_id: int | None = 1, role: str = "", **tls: Any) -> Controller:
        self.controllers.append(Controller(self.address, election_id, role, **tls))
        return self.controllers[-1]

    async def primary(self) -> Controller:
        """A controller that is primary, with the feature program committed."""
        controller = self.controller()
        await controller.arbitrate()
        await controller.set_pipeline(config())
        return controller

    @property
    def datapath(self) -> FakeDatapath:
        assert self.switch.committed is not None
        datapath = self.switch.committed.datapath
        assert isinstance(datapath, FakeDatapath)
        return datapath


@asynccontextmanager
async def serving(
    load: Callable[[bytes], Any] = FakeDatapath,
    roles: Sequence[str] = (),
    max_request: int = server.MAX_REQUEST,
    identity: Identity | None = None,
    clients: Sequence[str] = (),
) -> AsyncIterator[Served]:
    """Serve on a free port of the loopback; with an `identity` over TLS."""
    loaded: list[FakeDatapath] = []

    def loading(program: bytes) -> Any:
        loaded.append(load(program))
        return loaded[-1]

    ports, cpu = FakePorts(), FakeCpu()
    switch = Switch(ports, loading)
    service = server.P4RuntimeService(DEVICE, switch, cpu, roles, clients)  # type: ignore[arg-type]
    grpc_server, port = server.listen(service, "127.0.0.1:0", max_request, identity)
    await grpc_server.start()
    served = Served(f"127.0.0.1:{port}", switch, service, ports, cpu, loaded)
    try:
        yield served
    finally:
        for controller in served.controllers:
            await controller.close()
        await grpc_server.stop(None)
        switch.close()
