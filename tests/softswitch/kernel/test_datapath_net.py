"""The datapath at real interfaces: packets that grow, shrink and multiply; VLAN tags; TCP with offloads."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.packet import Raw

from machine.patience import patience
from machine.record import Record, Resource
from softswitch.compiler.build import LOOP_PORT
from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath
from tests.p4.resizing import resized

PROGRAM = Path(__file__).parents[1] / "programs" / "tunnel.json"
RESIZE = Path(__file__).parents[2] / "p4/programs/build/resize.json"
REPLICA = 5  # enum kind of runtime/types.h
TC_ACT_SHOT = 2
PACKET_AUXDATA, PACKET_VNET_HDR, SOL_PACKET = 8, 15, 263

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
            _ip("link", "set", end, "addrgenmode", "none")  # not with "up", which comes first
            _ip("link", "set", end, "up")
        self.ifindex = socket.if_nametoindex(self.switch_end)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((self.far_end, 3))
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.settimeout(patience(30))

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
            unexpected = {
                k: v for k, v in datapath.stats().items() if v and k not in ("not_a_port", "parser_error")
            }
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


def test_what_others_send_over_the_loop_interface_is_dropped() -> None:
    """Such as IPv6 packets of the kernel, whose control block can look like a replica's."""
    with Record("test-datapath-loop") as record:
        datapath = Datapath.load(load_program(PROGRAM.read_bytes()), name="loop", record=record)
        wire = Wire(record, f"tdl{os.getpid()}")
        try:
            datapath.add_port(1, wire.ifindex)
            datapath.multicast_set(1, ((1, 5),))
            wire.send(frame(5))
            assert wire.receive()  # its headers and metadata are in the first stash
            loop = datapath.shared.view("port_of", "H").tolist().index(LOOP_PORT + 1)
            cb = struct.pack("=4I", REPLICA | 1 << 8, 0, 0, 5)
            foreign = (bytes(40) + struct.pack("=II", loop, 0) + cb).ljust(192, b"\0")
            run = datapath.object.programs["softswitch"].test_run(frame(5), foreign)
            assert run.retval == TC_ACT_SHOT
        finally:
            datapath.close()
            wire.socket.close()


@pytest.mark.parametrize("segment", [0, 400], ids=["frame", "segments"])
@pytest.mark.parametrize("grows", [0, 16])
def test_what_exceeds_the_mtu_of_a_link_is_dropped_and_counted(segment: int, grows: int) -> None:
    """Also when only the header that the switch adds makes it too long, and in the segments of one packet."""
    with Record("test-datapath-mtu") as record:
        datapath = Datapath.load(load_program(RESIZE.read_bytes()), name="mtu", record=record)
        wire = Wire(record, f"tdm{os.getpid()}")
        wire.socket.close()
        wire.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        wire.socket.bind((wire.far_end, 3))
        wire.socket.settimeout(patience(30))
        offload = (1, 1, 54, segment, 34, 16) if segment else (0, 0, 0, 0, 0, 0)

        def frame(payload: int) -> bytes:
            command = bytes([14, 14 + grows]) + (54 + grows + payload).to_bytes(2, "big") + bytes(2)
            inner = bytes(IP(src="10.0.0.1", dst="10.0.0.2") / TCP() / Raw(bytes(payload)))
            return bytes(6) + command + b"\x08\0" + inner

        def send(packet: bytes) -> None:
            wire.send(struct.pack("=BBHHHH", *offload) + packet)

        try:
            datapath.add_port(1, wire.ifindex)
            long, short = frame(1200), frame(100)
            longest = 54 + grows + (segment or 1200)
            datapath.set_mtu(1, longest - 18)
            send(long)
            assert wire.receive()[10:] == resized(long)
            assert datapath.too_long() == {1: 0}
            datapath.set_mtu(1, longest - 19)
            send(long)
            send(short)
            assert wire.receive()[10:] == resized(short)
            assert datapath.too_long() == {1: 1}
            assert datapath.stats()["dropped_too_long"] == 1
        finally:
            datapath.close()
            wire.socket.close()


UDP_SUM = (1, 0, 0, 0, 34, 6)  # struct virtio_net_hdr: the checksum at byte 6 behind byte 34 is unfinished
TCP_SEGMENTS = (1, 1, 54, 400, 34, 16)  # and these are segments of 400 bytes each


@pytest.mark.parametrize("offload", [UDP_SUM, TCP_SEGMENTS], ids=["checksum", "segments"])
def test_a_frame_with_offloads_can_be_cut_anywhere(offload: tuple[int, ...]) -> None:
    """Even within the headers that the kernel has yet to finish, and whatever stands in front of them."""
    with Record("test-datapath-cut") as record:
        datapath = Datapath.load(load_program(RESIZE.read_bytes()), name="cut", record=record)
        wire = Wire(record, f"tdc{os.getpid()}")
        wire.socket.close()
        wire.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        wire.socket.bind((wire.far_end, 3))
        wire.socket.settimeout(patience(30))
        try:
            datapath.add_port(1, wire.ifindex)
            transport = UDP() if offload == UDP_SUM else TCP()
            payload = bytes(IP(src="10.0.0.1", dst="10.0.0.2") / transport / Raw(bytes(range(250)) * 4))
            for parsed, emitted in ((0, 0), (0, 30), (14, 14), (14, 30), (14, 4), (34, 14), (5, 4), (34, 0)):
                for length in range(14, 80):
                    command = bytes([parsed, emitted]) + length.to_bytes(2, "big") + bytes(2)
                    packet = bytes(6) + command + b"\x08\0" + payload
                    wire.send(struct.pack("=BBHHHH", *offload) + packet)
                    assert wire.receive()[10:] == resized(packet), (parsed, emitted, length)
        finally:
            datapath.close()
            wire.socket.close()


def host(record: Record, name: str, number: int, neighbours: dict[str, str]) -> str:
    """A host in its own namespace; returns the name of the switch's end of its link."""
    netns, end = f"{name}h{number}", f"{name}s{number}"
    record.own(Resource("netns", netns))
    _ip("netns", "add", netns)
    record.own(Resource("link", end))
    _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", netns)
    _ip("-n", netns, "link", "set", "eth0", "address", f"02:00:00:00:{number:02x}:0a", "mtu", "1400", "up")
    _ip("-n", netns, "addr", "add", f"10.9.0.{number}/24", "dev", "eth0")
    for address, mac in neighbours.items():
        _ip("-n", netns, "neigh", "add", address, "lladdr", mac, "dev", "eth0")
    _ip("link", "set", end, "up")
    return end


def transfer(name: str, address: str, size: int) -> None:
    """Send `size` bytes over TCP from host 1 to host 2, which it knows as `address`; all must arrive."""
    sink = subprocess.Popen(
        ["ip", "netns", "exec", f"{name}h2", sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True
    )
    try:
        assert sink.stdout is not None and sink.stdout.readline().strip() == "ready"
        source = ["ip", "netns", "exec", f"{name}h1", sys.executable, "-c", _SOURCE, address, str(size)]
        subprocess.run(source, check=True, timeout=patience(100))
        assert sink.stdout.readline().split() == [str(size), "ok"]
        assert sink.wait(timeout=patience(60)) == 0
    finally:
        sink.kill()
        sink.wait()


def datagrams(name: str) -> None:
    """Short datagrams from host 1, with unfinished checksums when they enter the switch, reach host 2."""
    sink = subprocess.Popen(
        ["ip", "netns", "exec", f"{name}h2", sys.executable, "-c", _DATAGRAM_SINK],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert sink.stdout is not None and sink.stdout.readline().strip() == "ready"
        source = ["ip", "netns", "exec", f"{name}h1", sys.executable, "-c", _DATAGRAM_SOURCE]
        subprocess.run(source, check=True, timeout=patience(100))
        assert sink.stdout.readline().strip() == str(list(range(40)))
    finally:
        sink.kill()
        sink.wait()


def test_checksum_offload_survives_a_tunnel() -> None:
    """TCP with segmentation and checksum offload through a push and a pop: every byte arrives."""
    name = f"tdt{os.getpid()}"
    with Record("test-datapath-tunnel") as record:
        macs = {1: "02:00:00:00:01:0a", 2: "02:00:00:00:02:0a"}
        ends = {
            1: host(record, name, 1, {"10.9.0.2": macs[2]}),
            4: host(record, name, 2, {"10.9.0.1": macs[1]}),
            2: f"{name}t2",
            3: f"{name}t3",
        }
        record.own(Resource("link", ends[2]))
        _ip("link", "add", ends[2], "type", "veth", "peer", "name", ends[3])
        for port in (2, 3):
            _ip("link", "set", ends[port], "addrgenmode", "none")
            _ip("link", "set", ends[port], "up")
        datapath = Datapath.load(load_program(PROGRAM.read_bytes()), name="gso", record=record)
        try:
            for port, end in ends.items():
                datapath.add_port(port, socket.if_nametoindex(end))
            transfer(name, "10.9.0.2", 4_000_000)
            if shutil.which("ethtool") is not None:  # now the kernel finishes checksums behind the tunnel
                subprocess.run(["ethtool", "-K", ends[4], "tx", "off"], check=True, capture_output=True)
            datagrams(name)
            statistics = datapath.stats()
            assert statistics["dropped_resize"] == statistics["dropped_too_long"] == 0
        finally:
            datapath.close()


@pytest.mark.parametrize("unfinished_in", [True, False])
@pytest.mark.parametrize("unfinished_out", [True, False])
def test_checksums_over_the_payload(unfinished_in: bool, unfinished_out: bool) -> None:
    """Address translation of TCP, whether or not host and port leave the checksum to the next device."""
    if shutil.which("ethtool") is None:
        pytest.skip("needs ethtool")
    name = f"tdn{os.getpid()}"
    with Record("test-datapath-nat") as record:
        ends = {
            1: host(record, name, 1, {"10.9.0.77": "02:00:00:00:02:0a"}),
            2: host(record, name, 2, {"10.9.0.1": "02:00:00:00:01:0a"}),
        }
        for number, end in ends.items():
            if not unfinished_in:
                enter = ["ip", "netns", "exec", f"{name}h{number}"]
                subprocess.run(
                    [*enter, "ethtool", "-K", "eth0", "tx", "off"], check=True, capture_output=True
                )
            if not unfinished_out:
                subprocess.run(["ethtool", "-K", end, "tx", "off"], check=True, capture_output=True)
        program = load_program((PROGRAM.parent / "nat.json").read_bytes())
        datapath = Datapath.load(program, name="nat", record=record)
        try:
            for port, end in ends.items():
                datapath.add_port(port, socket.if_nametoindex(end))
            transfer(name, "10.9.0.77", 1_000_000)
        finally:
            datapath.close()


_SINK = """
import hashlib, socket
listener = socket.create_server(("10.9.0.2", 5000))
print("ready", flush=True)
connection, _ = listener.accept()
connection.settimeout(60)
total, seen = 0, hashlib.sha256()
while data := connection.recv(1 << 20):
    total += len(data)
    seen.update(data)
expected = hashlib.sha256((bytes(range(251)) * (total // 251 + 1))[:total])
print(total, "ok" if seen.digest() == expected.digest() else "damaged", flush=True)
"""

_DATAGRAM_SINK = """
import socket
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("10.9.0.2", 5001))
sink.settimeout(60)
print("ready", flush=True)
print([len(sink.recv(1000)) for _ in range(40)], flush=True)
"""

_DATAGRAM_SOURCE = """
import socket
source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for size in range(40):
    source.sendto(bytes(size), ("10.9.0.2", 5001))
"""

_SOURCE = """
import socket, sys
size = int(sys.argv[2])
connection = socket.create_connection((sys.argv[1], 5000), timeout=60)
connection.sendall((bytes(range(251)) * (size // 251 + 1))[:size])
connection.close()
"""


def test_what_waits_in_a_port_is_not_in_its_senders_account(wires: dict[int, Wire]) -> None:
    sender, port = wires[1], wires[2].switch_end
    shaper = ["tc", "qdisc", "add", "dev", port, "root", "tbf"]
    subprocess.run([*shaper, "rate", "8kbit", "burst", "1600", "limit", "1000000"], check=True)
    try:
        for _ in range(40):
            sender.send(frame(0))
        deadline = time.monotonic() + patience(10)
        while (waiting := backlog(port)) < 30:  # five may have passed with the burst
            assert time.monotonic() < deadline, f"{waiting} of 40 frames wait"
        account = struct.unpack("i", fcntl.ioctl(sender.socket, termios.TIOCOUTQ, bytes(4)))[0]
        assert account == 0
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", port, "root"], check=True)


def backlog(interface: str) -> int:
    """How many packets wait at an interface."""
    shown = subprocess.run(
        ["tc", "-statistics", "-json", "qdisc", "show", "dev", interface, "root"],
        check=True,
        capture_output=True,
    )
    return sum(each["qlen"] for each in json.loads(shown.stdout))
