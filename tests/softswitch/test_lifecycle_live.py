"""A running switch with real interfaces: packets to and from its controller, and interfaces that go."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from finsy.proto import U128, p4r

from machine.patience import patience
from tests.softswitch.harness import DEVICE, IDS, INSERT, MODIFY, action, entry, l2, update
from tests.softswitch.p4runtime.test_server_entities import digest, multicast
from tests.softswitch.test_lifecycle_process import (
    FRAME,
    Process,
    arrives,
    controlled,
    packet_socket,
    pairs,
    running,
)

pytestmark = pytest.mark.root

__all__ = ["pairs"]  # a fixture

TO = int.from_bytes(FRAME[:6], "big")


@dataclass
class Live:
    """A switch with two ports and its primary controller."""

    process: Process
    stub: Any
    stream: Any
    send: Any
    hosts: list[socket.socket]

    def write(self, *updates: Any) -> None:
        self.stub.Write(
            p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1), updates=updates),
            timeout=patience(60),
        )

    def next(self, kind: str) -> Any:
        """The next stream message of a kind."""
        for message in self.stream:
            if message.WhichOneof("update") == kind:
                return getattr(message, kind)
        raise AssertionError("the stream ended")


@contextmanager
def live(pairs: list[tuple[str, str]]) -> Iterator[Live]:
    with ExitStack() as stack:
        hosts = [stack.enter_context(packet_socket(far)) for _, far in pairs]
        process = stack.enter_context(
            running(
                *("--no-p4", "--device-id", str(DEVICE), "--cpu-port", "255"),
                *("-i", f"1@{pairs[0][0]}", "-i", f"2@{pairs[1][0]}"),
            )
        )
        stub, stream, send = stack.enter_context(controlled(process.address))
        yield Live(process, stub, stream, send, hosts)


def test_packets_to_the_controller_and_back(pairs: list[tuple[str, str]]) -> None:
    with live(pairs) as switch:
        switch.write(update(INSERT, entry("l2", {1: TO}, action("to_cpu"))))
        switch.hosts[0].send(FRAME)
        packet = switch.next("packet")
        assert packet.payload == FRAME
        assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x01"), (2, b"\0")]
        # A packet as large as the interface allows gets its controller header on top.
        large = FRAME[:14] + bytes(1500)
        switch.hosts[1].send(large)
        packet = switch.next("packet")
        assert packet.payload == large
        assert packet.metadata[0].value == b"\x02"

        out = p4r.StreamMessageRequest()
        out.packet.payload = FRAME[::-1]
        out.packet.metadata.add(metadata_id=1, value=b"\x02")
        switch.send(out)
        switch.hosts[1].settimeout(patience(60))
        while switch.hosts[1].recv(4096) != FRAME[::-1]:
            pass


def test_replicas_leave_by_every_port_of_their_group(pairs: list[tuple[str, str]]) -> None:
    with live(pairs) as switch:
        switch.write(
            update(INSERT, multicast(9, (1, 1), (2, 2), (255, 3))),
            update(INSERT, entry("l2", {1: TO}, action("flood", 9))),
        )
        assert arrives(*switch.hosts)
        assert switch.next("packet").payload == FRAME


def test_digests_reach_the_controller(pairs: list[tuple[str, str]]) -> None:
    with live(pairs) as switch:
        source = int.from_bytes(FRAME[6:12], "big")
        switch.write(
            update(INSERT, digest(0, 1, 0)),
            update(INSERT, entry("source", {1: source, 2: 1}, action("learn"))),
        )
        switch.hosts[0].send(FRAME)
        learned = switch.next("digest")
        assert learned.digest_id == IDS["learn_t"]
        assert [m.bitstring for m in learned.data[0].struct.members] == [FRAME[6:12], b"\x01"]


def test_a_new_pipeline_replaces_the_old_one_under_traffic(pairs: list[tuple[str, str]]) -> None:
    with live(pairs) as switch:
        switch.write(update(INSERT, l2(TO, port=2)))
        assert arrives(*switch.hosts)
        request = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE, election_id=U128.encode(1))
        answer = switch.stub.GetForwardingPipelineConfig(
            p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE)
        )
        request.config.CopyFrom(answer.config)
        request.action = request.VERIFY_AND_COMMIT
        switch.stub.SetForwardingPipelineConfig(request, timeout=patience(60))
        assert not arrives(*switch.hosts, timeout_s=0.2)
        switch.write(update(INSERT, l2(TO, port=2)))
        assert arrives(*switch.hosts)
        switch.write(update(MODIFY, l2(TO, port=1)))
        assert not arrives(*switch.hosts, timeout_s=0.2)


def test_an_interface_that_goes_takes_only_its_port(pairs: list[tuple[str, str]]) -> None:
    with live(pairs) as switch:
        switch.write(update(INSERT, l2(TO, port=2)))
        assert arrives(*switch.hosts)
        near, far = pairs[1]
        subprocess.run(["ip", "link", "del", near], check=True)
        switch.hosts[0].send(FRAME)  # to a port without an interface
        subprocess.run(["ip", "link", "add", near, "type", "veth", "peer", "name", far], check=True)
        for end in (far, near):
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
        with packet_socket(far) as host:
            assert any(arrives(switch.hosts[0], host, timeout_s=0.2) for _ in range(50))
        assert switch.process.popen.poll() is None
