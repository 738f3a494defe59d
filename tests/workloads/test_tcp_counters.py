"""What the kernel counts of a process's TCP connections."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from workloads import tcp_counters
from workloads.tcp_counters import Signals, signals, signals_since

SILENT = """
import select, socket, subprocess
from workloads.tcp_counters import signals
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.create_server(("127.0.0.1", 0)) as server:
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    assert signals([sender.fileno()]).timeouts in (0, None)
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    sender.sendall(bytes(1000))
    while not (now := signals([sender.fileno(), receiver.fileno()])).retransmitted:
        select.select([receiver], [], [], 0.01)
    while now.timeouts == 0:
        now = signals([sender.fileno(), receiver.fileno()])
    print(now.retransmitted, now.timeouts)
"""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        yield sender, receiver


@pytest.mark.root
def test_a_segment_without_an_answer_is_sent_again_at_a_timeout() -> None:
    command = ["unshare", "--net", sys.executable, "-c", SILENT]
    retransmitted, timeouts = subprocess.check_output(command, text=True).split()
    assert int(retransmitted) >= 1
    assert timeouts == "None" or 1 <= int(timeouts) <= int(retransmitted)


def test_timeouts_are_unknown_where_the_kernel_counts_none(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tcp_counters._getsockopt

    def linux_6_1(fd: int, level: int, option: int, buffer: object, length: object) -> int:
        size = length._obj  # type: ignore[attr-defined]
        size.value = min(size.value, 232)
        return int(known(fd, level, option, buffer, ctypes.byref(size)))

    fds = [end.fileno() for end in pair]
    monkeypatch.setattr(tcp_counters, "_getsockopt", linux_6_1)
    assert signals(fds) == Signals(0, 0, None)
    assert signals_since(Signals(3, 2, None), Signals()) == Signals(3, 2, None)


def test_connections_are_counted_together_and_since_the_last_time() -> None:
    assert signals([]) == Signals(0, 0, 0)
    assert signals_since(Signals(7, 5, 4), Signals(3, 2, 1)) == Signals(4, 3, 3)
