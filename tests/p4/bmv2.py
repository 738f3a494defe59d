"""BMv2's simple_switch_grpc as a target, its data plane reached over gRPC instead of interfaces.

With `--dp-grpc-server-addr` packets travel on a stream, carry a number that comes back with whatever they
cause, and the stream ends only when the switch holds no packet any more: outputs belong to inputs without
guessing, and nothing has to be waited for by time. Needs no root.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4r
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.p4.runtime import TIMEOUT_S, ControllerHeader, Runtime
from tests.p4.targets import CPU_PORT, PORTS, Batch, Injected, Output, Program, Target

BINARY = "simple_switch_grpc"
DEVICE = 1
WINDOW = 16  # packets in flight: a port's queue in simple_switch holds 64 and drops what exceeds it


@functools.cache
def _packet_message() -> Any:
    """The message of BMv2's data plane stream: the same fields in both directions."""
    file = descriptor_pb2.FileDescriptorProto(
        name="entrain_tests/dataplane.proto", package="entrain.tests", syntax="proto3"
    )
    message = file.message_type.add(name="StreamPacket")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [
            ("id", kinds.TYPE_UINT64),
            ("device_id", kinds.TYPE_UINT64),
            ("port", kinds.TYPE_UINT32),
            ("packet", kinds.TYPE_BYTES),
        ],
        start=1,
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("entrain.tests.StreamPacket"))


def _free_port() -> int:
    """A TCP port for Thrift: a BMv2 that is built with it takes 9090 otherwise, and a second one dies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Controller:
    """Packet-in and packet-out as packets of the CPU port, for switches with a P4Runtime stream."""

    def __init__(self, client: Runtime) -> None:
        self._client = client
        self._in = ControllerHeader(client.schema, "packet_in")
        self._out = ControllerHeader(client.schema, "packet_out")

    def send(self, packet: bytes) -> None:
        """Send a packet-out; its first bytes are the controller header."""
        message = p4r.PacketOut(payload=packet[self._out.size :], metadata=self._out.unpack(packet))
        self._client.send(p4r.StreamMessageRequest(packet=message))

    def receive_until(self, token: bytes) -> list[bytes]:
        """All packet-ins up to the one that ends in `token`, without that one."""
        received: list[bytes] = []
        while True:
            message = self._client.packets.get(timeout=TIMEOUT_S)
            packet = self._in.pack(message.metadata) + message.payload
            if packet.endswith(token):
                return received
            received.append(packet)


class Bmv2(Target):
    """simple_switch_grpc in a process of its own."""

    kind = "bmv2"

    def __init__(self, program: Program, *options: str) -> None:
        super().__init__(program)
        self._options = options
        self._scratch = tempfile.TemporaryDirectory(prefix="entrain-bmv2-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        scratch = Path(self._scratch.name)
        control, data = f"unix:{scratch}/control", f"unix:{scratch}/data"
        command = [BINARY, "--no-p4", "--device-id", str(DEVICE), "--thrift-port", str(_free_port())]
        command += [*self._options, "--"]
        command += ["--grpc-server-addr", control, "--dp-grpc-server-addr", data, "--cpu-port", str(CPU_PORT)]
        with (scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=scratch)
        self.client = Runtime(control, self.program.p4info, device_id=DEVICE)
        self.client.connect()
        self.client.set_pipeline(self.program.json.read_bytes())
        self._controller = Controller(self.client)
        self._data = grpc.insecure_channel(data)
        grpc.channel_ready_future(self._data).result(timeout=TIMEOUT_S)
        message = _packet_message()
        self._stream = self._data.stream_stream(
            "/p4.bm.DataplaneInterface/PacketStream",
            request_serializer=message.SerializeToString,
            response_deserializer=message.FromString,
        )

        self._await_data_plane()

    def _await_data_plane(self) -> None:
        """The P4Runtime server is up before the data plane is, which refuses streams until then."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                list(self._stream(iter(()), timeout=TIMEOUT_S))
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
        if hasattr(self, "_data"):
            self._data.close()
        if self._process is not None:
            end(self._process)
        self._scratch.cleanup()

    def _exchange(self, packets: Sequence[Injected]) -> list[list[Output]]:
        """One stream: all packets in, all that leaves at data ports out, by input."""
        outputs: list[list[Output]] = [[] for _ in packets]
        message = _packet_message()
        requests = (
            message(id=number, device_id=DEVICE, port=port, packet=packet)
            for number, (port, packet) in enumerate(packets, start=1)
        )
        for output in self._stream(requests, timeout=120):
            outputs[output.id - 1].append((output.port, output.packet))
        return outputs

    def _exchange_from_controller(self, packet: bytes) -> list[Output]:
        """One packet-out. It carries no number, so it goes alone: what leaves meanwhile is its doing."""
        opening, closing = self.token(), self.token()
        opened, closed = threading.Event(), threading.Event()

        def requests() -> Iterator[Any]:
            closed.wait(TIMEOUT_S)
            yield from ()

        def knock() -> None:
            # The switch loses what leaves before it has taken up the stream, and does not say when that is.
            while not opened.wait(0.005):
                self._controller.send(self.program.fence(CPU_PORT, PORTS[0], opening))

        stream = self._stream(requests(), timeout=TIMEOUT_S)
        knocking = threading.Thread(target=knock, daemon=True)
        knocking.start()
        outputs = []
        for output in stream:
            if output.packet.endswith(closing):
                closed.set()  # packet-outs stay in order: ours is inside, and the stream ends when it is done
            elif not output.packet.endswith(opening):
                outputs.append((output.port, output.packet))
            elif not opened.is_set():
                opened.set()
                knocking.join()
                self._controller.send(packet)
                self._controller.send(self.program.fence(CPU_PORT, PORTS[0], closing))
        return outputs

    def send_batch(self, packets: Sequence[Injected]) -> Batch:
        outputs: list[list[Output]] = []
        for from_controller, group in itertools.groupby(packets, key=lambda each: each[0] == CPU_PORT):
            if from_controller:
                outputs += [self._exchange_from_controller(packet) for _, packet in group]
            else:
                waiting = list(group)
                for first in range(0, len(waiting), WINDOW):
                    outputs += self._exchange(waiting[first : first + WINDOW])
        token = self.token()
        self._controller.send(self.program.fence(CPU_PORT, CPU_PORT, token))
        present = [sorted(output for output in each if output[0] in PORTS) for each in outputs]
        return Batch(present, self._controller.receive_until(token))
