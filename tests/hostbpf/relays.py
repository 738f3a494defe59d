"""Two hosts with a thread between them that delays frames, loses some, and lets others overtake."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ebpf import in_netns
from machine.record import Record, Resource
from tests.hostbpf.conftest import A, B, Pair
from tests.hostbpf.taps import sniff

HELD_S = 0.005


class Relay:
    """Joins two interfaces, each of which its socket sees."""

    def __init__(
        self, ends: tuple[socket.socket, socket.socket], loss: float, held: float, delay_s: float
    ) -> None:
        self._ends = ends
        self._draw = random.Random(1)
        self._loss, self._held, self._delay_s = loss, held, delay_s
        self._waiting: dict[socket.socket, bytes] = {}  # to be overtaken
        self._line: deque[tuple[float, socket.socket, bytes]] = deque()  # and when each leaves it
        self.overtaken = self.lost = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Join them no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        other = {self._ends[0]: self._ends[1], self._ends[1]: self._ends[0]}
        while not self._ended.is_set():
            patience = min(HELD_S, self._line[0][0] - time.monotonic()) if self._line else HELD_S
            ready = select.select(self._ends, [], [], max(patience, 0.0))[0]
            for end in ready:
                frame, address = end.recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING:
                    self._forward(other[end], frame)
            if not ready:
                for end, frame in self._waiting.items():
                    self._send(end, frame)
                self._waiting.clear()
            while self._line and self._line[0][0] <= time.monotonic():
                _, end, frame = self._line.popleft()
                end.send(frame)

    def _forward(self, end: socket.socket, frame: bytes) -> None:
        if self._draw.random() < self._loss:
            self.lost += 1
        elif end not in self._waiting and self._draw.random() < self._held:
            self._waiting[end] = frame
        else:
            self._send(end, frame)
            if self._draw.random() < 0.5 and (held := self._waiting.pop(end, None)):
                self._send(end, held)
                self.overtaken += 1

    def _send(self, end: socket.socket, frame: bytes) -> None:
        self._line.append((time.monotonic() + self._delay_s, end, frame))


@contextlib.contextmanager
def apart(tmp_path: Path) -> Iterator[Pair]:
    """As conftest's pair, but what joins the hosts is in a namespace between them, for a `relay`."""
    names = [f"th{each}{os.getpid()}" for each in "axb"]
    with Record("test-hostbpf", records=tmp_path / "records") as record:
        for name in names:
            record.own(Resource("netns", name))
            subprocess.run(["ip", "netns", "add", name], check=True)
        for name, address, inner in ((names[0], A, "left"), (names[2], B, "right")):
            for command in (
                f"-n {name} link add eth0 type veth peer name {inner} netns {names[1]}",
                f"-n {name} addr add {address}/24 dev eth0",
                f"-n {name} link set eth0 up",
                f"-n {names[1]} link set {inner} up",
                f"netns exec {name} ethtool -K eth0 tx off tso off gso off gro off",
            ):
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
        index_a, index_b = (
            in_netns(name, lambda: socket.if_nametoindex("eth0")) for name in (names[0], names[2])
        )
        yield Pair(names[0], names[2], index_a, index_b)


@contextlib.contextmanager
def relay(pair: Pair, loss: float, held: float = 0.0, delay_s: float = 0.0) -> Iterator[Relay]:
    """Within, the hosts are joined by a way that takes `delay_s`. Of the frames the share `loss` is lost, and
    the share `held` waits until another one has passed."""
    between = pair.a.replace("tha", "thx")
    with sniff(between, "left") as left, sniff(between, "right") as right:
        running = Relay((left, right), loss, held, delay_s)
        try:
            yield running
        finally:
            running.close()
