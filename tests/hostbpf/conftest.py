"""Two hosts joined by a cable: network namespaces `a` and `b` with addresses 10.77.0.1 and 10.77.0.2."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from ebpf import EbpfError, in_netns
from machine.patience import patience
from machine.record import Record, Resource

T = TypeVar("T")

A, B = "10.77.0.1", "10.77.0.2"


@dataclass(frozen=True)
class Pair:
    """Names of the two namespaces, and the interface's index in each."""

    a: str
    b: str
    index_a: int
    index_b: int

    def run(self, netns: str, *command: str) -> str:
        """Run a command inside a namespace; returns its output."""
        done = subprocess.run(
            ["ip", "netns", "exec", netns, *command], check=True, capture_output=True, text=True
        )
        return done.stdout


@dataclass
class Connection:
    """A TCP connection from `a` to `b`; what arrives is counted in `received`."""

    sender: socket.socket
    receiver: socket.socket

    def transfer(self, size: int) -> bytes:
        """Send `size` pattern bytes and return what arrived."""
        data = bytes(i * 7 % 251 for i in range(min(size, 100_000)))
        data = (data * (size // max(len(data), 1) + 1))[:size]
        thread = threading.Thread(target=self.sender.sendall, args=(data,))
        thread.start()
        arrived = bytearray()
        while len(arrived) < size:
            part = self.receiver.recv(1 << 20)
            assert part, "the connection ended early"
            arrived += part
        thread.join()
        assert arrived == data
        return bytes(arrived)


@contextlib.contextmanager
def or_skip(registration: contextlib.AbstractContextManager[T]) -> Iterator[T]:
    """Enter it, or skip: the kernel has one list of congestion controls, and an experiment may hold it."""
    with contextlib.ExitStack() as stack:
        try:
            entered = stack.enter_context(registration)
        except EbpfError as error:
            if error.errno != errno.EEXIST:
                raise
            pytest.skip("another process of this machine holds the congestion controls")
        yield entered


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    a, b = f"tha{os.getpid()}", f"thb{os.getpid()}"
    with Record("test-hostbpf", records=tmp_path / "records") as record:
        for name in (a, b):
            record.own(Resource("netns", name))
            subprocess.run(["ip", "netns", "add", name], check=True)
        command = f"link add eth0 type veth peer name eth0 netns {b}"
        subprocess.run(["ip", "-n", a, *command.split()], check=True)
        for name, address in ((a, A), (b, B)):
            for command in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                subprocess.run(["ip", "-n", name, *command.split()], check=True)
        index_a, index_b = (in_netns(name, lambda: socket.if_nametoindex("eth0")) for name in (a, b))
        yield Pair(a, b, index_a, index_b)


@pytest.fixture
def connect(pair: Pair) -> Iterator[Callable[..., Connection]]:
    """Makes connections from a to b with a congestion control and a socket mark."""
    with contextlib.ExitStack() as stack:

        def make(control: str = "reno", mark: int = 0) -> Connection:
            def listen() -> socket.socket:
                listener = socket.socket()
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
                listener.bind((B, 0))
                listener.listen()
                return listener

            listener = in_netns(pair.b, listen)
            sender = stack.enter_context(in_netns(pair.a, socket.socket))
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            sender.settimeout(patience(60))
            sender.connect(listener.getsockname())
            receiver = stack.enter_context(listener.accept()[0])
            receiver.settimeout(patience(60))
            listener.close()
            return Connection(sender, receiver)

        yield make
