"""A synchronous P4Runtime client for tests: one switch, one controller, names instead of ids.

Entities are finsy's (`P4TableEntry` and so on); here they only travel over a blocking channel.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from finsy import P4Schema
from finsy.p4entity import decode_entity, decode_stream, encode_entities, encode_updates
from finsy.proto import p4r, p4r_grpc, rpc_status

TIMEOUT_S = 60.0
_QUICK = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


def refusals(error: grpc.RpcError) -> list[p4r.Error]:
    """Why each update of a Write was refused (canonical code 0: it was not)."""
    details = []
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in rpc_status.Status.FromString(value).details:
                p4_error = p4r.Error()
                detail.Unpack(p4_error)
                details.append(p4_error)
    return details


class Runtime:
    """The primary controller of one switch. Methods raise grpc.RpcError where the switch refuses."""

    def __init__(self, address: str, p4info: Path, *, device_id: int = 1, election_id: int = 1) -> None:
        self.schema = P4Schema(p4info)
        self._device_id = device_id
        self._election = p4r.Uint128(high=0, low=election_id)
        self._channel = grpc.insecure_channel(address, _QUICK)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self.packets: queue.SimpleQueue[p4r.PacketIn] = queue.SimpleQueue()
        self._messages: queue.SimpleQueue[p4r.StreamMessageResponse] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def connect(self) -> None:
        """Wait for the server and become primary."""
        grpc.channel_ready_future(self._channel).result(timeout=TIMEOUT_S)
        arbitration = p4r.MasterArbitrationUpdate(device_id=self._device_id, election_id=self._election)
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        self._thread.start()
        reply = self._messages.get(timeout=TIMEOUT_S)
        assert reply.arbitration.status.code == 0, f"not primary: {reply}"

    def _receive(self) -> None:
        def requests() -> Iterator[p4r.StreamMessageRequest]:
            while (request := self._requests.get()) is not None:
                yield request

        try:
            for message in self._stub.StreamChannel(requests()):
                if message.WhichOneof("update") == "packet":
                    self.packets.put(message.packet)
                else:
                    self._messages.put(message)
        except grpc.RpcError:
            return  # the channel was closed, or the switch has gone: the next call says so

    def set_pipeline(self, program: bytes) -> None:
        """Load the BMv2 JSON and the P4Info, and commit."""
        config = p4r.ForwardingPipelineConfig(p4info=self.schema.p4info, p4_device_config=program)
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=self._election,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=config,
        )
        self._stub.SetForwardingPipelineConfig(request, timeout=120)

    def insert(self, *entities: Any) -> None:
        """Insert entities (finsy's or protobuf's), in one batch."""
        self.write(*(p4r.Update(type=p4r.Update.INSERT, entity=entity) for entity in self._encode(entities)))

    def modify(self, *entities: Any) -> None:
        """Modify entities, in one batch."""
        self.write(*(p4r.Update(type=p4r.Update.MODIFY, entity=entity) for entity in self._encode(entities)))

    def delete(self, *entities: Any) -> None:
        """Delete entities, in one batch."""
        self.write(*(p4r.Update(type=p4r.Update.DELETE, entity=entity) for entity in self._encode(entities)))

    def _encode(self, entities: Sequence[Any]) -> list[p4r.Entity]:
        return list(encode_entities(list(entities), self.schema))

    def write(self, *updates: p4r.Update) -> None:
        """Write a batch. The exception of a refusal has the reasons as notes."""
        request = p4r.WriteRequest(device_id=self._device_id, election_id=self._election, updates=updates)
        try:
            self._stub.Write(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            for update, refusal in zip(request.updates, refusals(error), strict=False):
                if refusal.canonical_code:
                    error.add_note(f"{refusal}of {update}")
            raise

    def read(self, *entities: Any) -> list[Any]:
        """Read what finsy entities name; the answers are finsy entities too."""
        request = p4r.ReadRequest(device_id=self._device_id)
        request.entities.extend(encode_entities(list(entities), self.schema))
        found: Sequence[Any] = [
            entity for reply in self._stub.Read(request, timeout=TIMEOUT_S) for entity in reply.entities
        ]
        return [decode_entity(entity, self.schema) for entity in found]

    def send(self, *messages: Any) -> None:
        """Put finsy messages (packet-out, digest acknowledgement) or protobuf requests on the stream."""
        for message in encode_updates(list(messages), self.schema):
            self._requests.put(message)

    def next_message(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The next stream message that is no packet-in, as finsy's entity; raises queue.Empty."""
        return decode_stream(self._messages.get(timeout=timeout_s), self.schema)

    def close(self) -> None:
        """End the stream and the channel."""
        self._requests.put(None)
        self._channel.close()


class ControllerHeader:
    """A controller header as the data plane has it: field behind field, most significant bit first."""

    def __init__(self, schema: P4Schema, name: str) -> None:
        found = [
            header
            for header in (schema.p4info.controller_packet_metadata if schema.exists else ())
            if header.preamble.name == name
        ]
        self._fields = list(found[0].metadata) if found else []
        bits = sum(field.bitwidth for field in self._fields)
        assert bits % 8 == 0, f"{name} has {bits} bits"
        self.size = bits // 8

    def pack(self, metadata: Sequence[p4r.PacketMetadata]) -> bytes:
        """Bytes of the header from the fields of a packet-in."""
        values = {item.metadata_id: int.from_bytes(item.value, "big") for item in metadata}
        whole = 0
        for field in self._fields:
            whole = whole << field.bitwidth | values[field.id]
        return whole.to_bytes(self.size, "big")

    def unpack(self, data: bytes) -> list[p4r.PacketMetadata]:
        """Fields of a packet-out from the first bytes of a packet to the CPU port."""
        whole = int.from_bytes(data[: self.size], "big")
        metadata = []
        for field in reversed(self._fields):
            value = whole & (1 << field.bitwidth) - 1
            whole >>= field.bitwidth
            size = max(1, (value.bit_length() + 7) // 8)
            metadata.append(p4r.PacketMetadata(metadata_id=field.id, value=value.to_bytes(size, "big")))
        return metadata[::-1]
