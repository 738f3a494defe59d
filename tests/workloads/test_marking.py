"""Marks: each byte on the wire carries its step in the DSCP, each socket its job's number."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf import mltcp
from hostbpf.flow import netns_cookie
from hostbpf.mltcp import JobKey, Params
from tests.attempts import undisturbed
from workloads.jobs import load_job
from workloads.launch import enter_netns
from workloads.records import read_records
from workloads.tcp_counters import own_connections, set_mark

JobFile = Callable[..., Path]
HEADER, HELLO = 32, 40


@pytest.fixture
def netns() -> Iterator[str]:
    """A network namespace with nothing but loopback."""
    name = f"workloads-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def capture(netns: str, run: Callable[[], None]) -> list[bytes]:
    """The IPv4 packets, from their IP header on, that arrive on a namespace's loopback while `run` runs."""
    sniffer = _socket_in(netns)
    with sniffer:
        sniffer.bind(("lo", 0x0800))
        run()
        sniffer.setblocking(False)
        packets = []
        try:
            while True:
                packet, address = sniffer.recvfrom(1 << 17)
                if address[2] != socket.PACKET_OUTGOING:
                    packets.append(packet[14:])
        except BlockingIOError:
            pass
        statistics = sniffer.getsockopt(263, 6, 8)  # SOL_PACKET, PACKET_STATISTICS
        assert struct.unpack("II", statistics)[1] == 0, "the sniffer lost packets"
        return packets


def _socket_in(netns: str) -> socket.socket:
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        enter_netns(netns)
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        sniffer.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        return sniffer
    finally:
        ctypes.CDLL(None).setns(here, 0)
        os.close(here)


@pytest.mark.root
@pytest.mark.parametrize(
    ("collective", "ranks"),
    [("ring", 3), ("halving-doubling", 4), ("all-to-all", 3), ("parameter-server", 3)],
)
def test_every_byte_carries_the_step_it_belongs_to(
    netns: str, job_file: JobFile, tmp_path: Path, collective: str, ranks: int
) -> None:
    path = job_file(
        ranks, collective=collective, parts=3, bytes=3_000_000, iterations=2, netns=[netns] * ranks
    )

    def run() -> None:
        command = [sys.executable, "-m", "workloads", "launch", "--json", "--job", str(path)]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0

    job = load_job(path)
    rank_of = {str(host): rank for rank, host in enumerate(job.hosts)}
    ends: dict[tuple[int, int], int] = {}  # what follows the bytes seen on a connection
    sizes: Counter[tuple[int, int, int]] = Counter()
    for packet in capture(netns, run):
        header_size = (packet[0] & 15) * 4
        dst_port, sequence = struct.unpack_from("!HI", packet, header_size + 2)
        payload = struct.unpack_from("!H", packet, 2)[0] - header_size - (packet[header_size + 12] >> 4) * 4
        if packet[9] != socket.IPPROTO_TCP or dst_port != job.port_base or payload <= 0:
            continue
        src, dst = (rank_of[socket.inet_ntoa(packet[i : i + 4])] for i in (12, 16))
        end = ends.setdefault((src, dst), sequence)
        fresh = payload - (end - sequence) % 2**32  # what is sent again carries the mark of what is sent now
        if 0 < fresh <= payload:
            ends[src, dst] = (sequence + payload) % 2**32
            sizes[src, dst, packet[1] >> 2] += fresh
        assert packet[1] & 3 == 0  # the job leaves the ECN bits alone, and cubic does not use them here

    expected: Counter[tuple[int, int, int]] = Counter()
    for step, transfers in enumerate(job.program().steps):
        for t in transfers:
            expected[t.src, t.dst, step] += 2 * HEADER
    for src, dst in {(src, dst) for src, dst, _ in expected}:
        expected[src, dst, 0] += HELLO
    for flow in read_records(tmp_path / "records").flows:
        expected[flow.src_rank, flow.dst_rank, flow.step] += flow.bytes
    assert sizes == expected


@pytest.mark.root
@pytest.mark.parametrize(
    "what",
    [{"collective": "ring"}, {"collective": "parameter-server"}, {"model": "mlp", "bytes": None}],
    ids=["ring", "parameter-server", "ddp"],
)
def test_two_jobs_on_one_host_are_two_jobs_to_mltcp(
    netns: str, job_file: JobFile, tmp_path: Path, what: dict[str, str | None]
) -> None:
    """Each has its own state, in which an iteration has the bytes that its own ranks sent."""
    if "model" in what:
        pytest.importorskip("torch")
    if mltcp.VARIANTS[0] in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    ranks, iterations = 2, 3
    paths = {
        mark: job_file(
            ranks,
            tmp_path / f"job{mark}",
            **{"bytes": 100_000 * mark, **what},
            name=f"job{mark}",
            compute_ms=400,
            iterations=iterations,
            port_base=7000 + mark,
            netns=[netns] * ranks,
            congestion_control="mltcp_reno",
            mark=mark,
        )
        for mark in (1, 2)
    }
    told = {mark: Params(total_bytes=1 << 40, gap_ms=150) for mark in paths}

    def counted_and_sent() -> list[tuple[int, int]]:
        """By job, the bytes of the last iteration as MLTCP has counted them and as the ranks have."""
        with mltcp.registered(told) as jobs:
            files = [argument for path in paths.values() for argument in ("--job", str(path))]
            command = [sys.executable, "-m", "workloads", "launch", "--json", *files]
            assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=100).returncode == 0
            states = dict(jobs.states.items())
        assert set(states) == {JobKey(mark, netns_cookie(netns)) for mark in paths}
        records = {mark: read_records(path.parent / "records").iterations for mark, path in paths.items()}
        sent = {
            mark: sum(each.bytes for each in found if each.iteration == iterations - 1)
            for mark, found in records.items()
        }
        return [(states[JobKey(mark, netns_cookie(netns))].bytes, sent[mark]) for mark in paths]

    undisturbed(  # to MLTCP a rank that has no processor computes
        counted_and_sent,
        lambda found: all(counted == pytest.approx(sent, rel=0.05) for counted, sent in found),
    )


@pytest.mark.root
def test_open_connections_can_be_marked() -> None:
    """As those that a library has opened."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as opened,
    ):
        (connection,) = (each for each in own_connections() if each.fd == opened.fileno())
        set_mark(connection, 0xE57A0001)
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) & 0xFFFFFFFF == 0xE57A0001
