"""The datapath at real interfaces: packets that grow, shrink and multiply; VLAN tags; TCP with offloads."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from machine.record import Record, Resource
from softswitch.datapath import Datapath
from softswitch.ir import load_program

PROGRAM = Path(__file__).parent / "programs" / "tunnel.json"
PACKET_AUXDATA, SOL_PACKET = 8, 263

pytestmark = pytest.mark.root


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Wire:
    """The far end of a switch port: raw frames in and out."""

    def __init__(self, record: Record, name: str) -> None:
        self.switch_end, self.far_end = f"{name}s", f"{name}f"
        record.own(Resource("link", self.switch_end))
        _ip("link", "add", self.switch_end, "type", "veth", "peer", "name", self.far_end)
        for end in (self.switch_end, self.far_end):
            _ip("link", "set", end, "addrgenmode", "none", "up")
        self.ifindex = socket.if_nametoindex(self.switch_end)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((self.far_end, 3))
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.settimeout(5)

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def receive(self) -> bytes:
        """The next frame that the switch sent, its VLAN tag back in its place."""
        while True:
            frame, auxiliary, _, address = self.socket.recvmsg(70000, 256)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            for level, kind, data in auxiliary:
                if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                    status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
                    if status & 0x10:
                        frame = frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
            return bytes(frame)


@pytest.fixture(scope="module")
def wires() -> Iterator[dict[int, Wire]]:
    with Record("test-datapath-net") as record:
        program = load_program(PROGRAM.read_bytes())
        datapath = Datapath.load(program, name="tunnel", record=record)
        wires = {port: Wire(record, f"tdn{os.getpid()}{port}") for port in (1, 2)}
        try:
            for port, wire in wires.items():
                datapath.add_port(port, wire.ifindex)
            datapath.multicast_set(1, ((1, 5), (2, 6)))
            datapath.clone_session_set(1, ((1, 7), (2, 8)), 0)
            yield wires
            unexpected = {k: v for k, v in datapath.stats().items() if v and k != "not_a_port"}
            assert not unexpected, unexpected
        finally:
            datapath.close()
            for wire in wires.values():
                wire.socket.close()


@pytest.fixture(scope="module")
def netless() -> Iterator[Datapath]:
    datapath = Datapath.load(load_program(PROGRAM.read_bytes()), name="tunnel", netless=True)
    datapath.multicast_set(1, ((1, 5), (2, 6)))
    datapath.clone_session_set(1, ((1, 7), (2, 8)), 0)
    yield datapath
    datapath.close()


def frame(op: int, middle: bytes = b"", size: int = 300, ethertype: int = 0x800) -> bytes:
    addresses = bytes.fromhex("020000000001") + bytes.fromhex("0200000000") + bytes([op])
    inner = bytes(IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2) / Raw(bytes(range(256)) * 8))
    return addresses + middle + struct.pack("!H", ethertype) + inner[:size]


TAG = bytes.fromhex("9001abcd")
BIG = bytes.fromhex("9002") + bytes(range(32))

CASES = {
    "unchanged": frame(0),
    "push 4": frame(1),
    "push 4 on a short packet": frame(1, size=21),
    "push 34": frame(3),
    "push 34 on what is not IP": frame(3, ethertype=0x1234),
    "pop 4": frame(2, TAG),
    "pop 4 of a short packet": frame(2, TAG, size=20),
    "pop 4 of what is not IP": frame(2, TAG, ethertype=0x1234),
    "pop 4 of three tags": frame(2, TAG * 3),
    "pop 34": frame(4, BIG),
    "pop 34 of a short packet": frame(4, BIG, size=20),
    "pop 34 of the longest packet": frame(4, BIG, size=1460),
    "multicast": frame(5),
    "clone at ingress": frame(6),
    "resubmit": frame(7),
    "clone at egress": frame(8),
    "recirculate twice, growing": frame(9),
    "truncate": frame(11),
    "VLAN kept": frame(0, bytes.fromhex("81000123")),
    "VLAN behind which a tag goes": frame(1, bytes.fromhex("81000123")),
    "VLAN taken off": frame(12, bytes.fromhex("81000123")),
    "tag pushed before a VLAN": frame(3, bytes.fromhex("8100e123")),
    "too short to parse": frame(1, TAG)[:16],
    "two packets' worth of tags": frame(0, TAG * 4),
}


@pytest.mark.parametrize("case", CASES)
def test_at_interfaces_as_without(wires: dict[int, Wire], netless: Datapath, case: str) -> None:
    """What leaves at interfaces is what a netless run says, which is held against BMv2 elsewhere."""
    packet = CASES[case]
    expected: dict[int, list[bytes]] = {1: [], 2: []}
    for port, data in netless.run(packet, 1):
        expected[port].append(data)
    wires[1].send(packet)
    received = {port: [wires[port].receive() for _ in packets] for port, packets in expected.items()}
    assert any(expected.values())
    for port, packets in expected.items():
        assert sorted(r.hex() for r in received[port]) == sorted(p.hex() for p in packets), f"port {port}"


def test_checksum_offload_survives_a_tunnel(tmp_path: Path) -> None:
    """TCP with segmentation and checksum offload through a push and a pop: every byte arrives."""
    name = f"tdt{os.getpid()}"
    with Record("test-datapath-tunnel") as record:
        ends = {}
        for host, port in ((1, 1), (2, 4)):
            record.own(Resource("netns", f"{name}h{host}"))
            _ip("netns", "add", f"{name}h{host}")
            record.own(Resource("link", f"{name}s{port}"))
            _ip(
                "link",
                "add",
                f"{name}s{port}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                f"{name}h{host}",
            )
            mac = f"02:00:00:00:{host:02x}:0a"
            _ip("-n", f"{name}h{host}", "link", "set", "eth0", "address", mac, "mtu", "1400", "up")
            _ip("-n", f"{name}h{host}", "addr", "add", f"10.9.0.{host}/24", "dev", "eth0")
            _ip("link", "set", f"{name}s{port}", "up")
            ends[port] = f"{name}s{port}"
        for host, other in ((1, 2), (2, 1)):
            address, mac = f"10.9.0.{other}", f"02:00:00:00:{other:02x}:0a"
            _ip("-n", f"{name}h{host}", "neigh", "add", address, "lladdr", mac, "dev", "eth0")
        record.own(Resource("link", f"{name}s2"))
        _ip("link", "add", f"{name}s2", "type", "veth", "peer", "name", f"{name}s3")
        for port in (2, 3):
            _ip("link", "set", f"{name}s{port}", "addrgenmode", "none", "up")
            ends[port] = f"{name}s{port}"
        datapath = Datapath.load(load_program(PROGRAM.read_bytes()), name="gso", record=record)
        try:
            for port, end in ends.items():
                datapath.add_port(port, socket.if_nametoindex(end))
            size = 4_000_000
            sink = subprocess.Popen(
                ["ip", "netns", "exec", f"{name}h2", sys.executable, "-c", _SINK],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert sink.stdout is not None and sink.stdout.readline().strip() == "ready"
            subprocess.run(
                ["ip", "netns", "exec", f"{name}h1", sys.executable, "-c", _SOURCE, str(size)],
                check=True,
                timeout=60,
            )
            assert sink.stdout.readline().split() == [str(size), "ok"]
            assert sink.wait(timeout=10) == 0
            statistics = datapath.stats()
            assert statistics["dropped_resize"] == statistics["dropped_too_long"] == 0
        finally:
            datapath.close()


_SINK = """
import hashlib, socket
listener = socket.create_server(("10.9.0.2", 5000))
print("ready", flush=True)
connection, _ = listener.accept()
connection.settimeout(30)
total, seen = 0, hashlib.sha256()
while data := connection.recv(1 << 20):
    total += len(data)
    seen.update(data)
expected = hashlib.sha256((bytes(range(251)) * (total // 251 + 1))[:total])
print(total, "ok" if seen.digest() == expected.digest() else "damaged", flush=True)
"""

_SOURCE = """
import socket, sys
size = int(sys.argv[1])
connection = socket.create_connection(("10.9.0.2", 5000), timeout=30)
connection.sendall((bytes(range(251)) * (size // 251 + 1))[:size])
connection.close()
"""
