"""Random loss does not keep a flow from its schedule: losses without a queue leave the window as it is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostbpf.clock import SlotClock
from hostbpf.flow import netns_cookie
from hostbpf.rates import schedules as slots
from hostbpf.rates.schedules import Schedules
from tests.hostbpf.conftest import Connection, Pair, or_skip
from tests.hostbpf.relays import apart, relay
from wire.flow import Flow

pytestmark = pytest.mark.root

CLOCK = SlotClock.shared(100)
RATE_MBPS = 10.0
LOSS, DELAY_S = 0.01, 0.02  # where TCP gets some 4 Mbit/s
WARM, MEASURED, ROUNDS = 10, 20, 3  # slots, and how often a busy machine may try


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with apart(tmp_path) as hosts:
        yield hosts


class Transfer:
    """Sends all the time; `arrived` counts bytes."""

    def __init__(self, connection: Connection) -> None:
        self.arrived = 0
        self._connection = connection
        self._ended = threading.Event()
        connection.sender.setsockopt(socket.IPPROTO_TCP, 25, 65536)  # TCP_NOTSENT_LOWAT
        self._threads = [threading.Thread(target=each) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                self._connection.sender.send(bytes(30_000))

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while part := self._connection.receiver.recv(1 << 18):
                self.arrived += len(part)

    def close(self) -> None:
        """Send no more, and wait for nothing."""
        self._ended.set()
        self._connection.receiver.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.sender.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


def wait_for_slot(slot: int) -> None:
    while CLOCK.slot() < slot:
        threading.Event().wait(0.01)


def test_a_schedule_is_kept_at_random_loss(pair: Pair, connect: Callable[..., Connection]) -> None:
    """Within some percent, while the same control without a schedule gets less on the same path."""
    with (
        or_skip(slots.pacing_registered()) as registered,
        relay(pair, LOSS, delay_s=DELAY_S) as between,
        contextlib.ExitStack() as stack,
    ):
        connections = [connect(each) for each in (*slots.PACED, "slot_cubic")]
        schedules = Schedules(registered, CLOCK, netns=netns_cookie(pair.a))
        flows = [stack.enter_context(contextlib.closing(Transfer(each))) for each in connections]
        wanted = RATE_MBPS * 125_000 * MEASURED * CLOCK.slot_ns / 1e9
        for _ in range(ROUNDS):
            first = CLOCK.slot()
            for connection in connections[:-1]:
                schedules.set(Flow.of(connection.sender), first, [RATE_MBPS] * slots.HORIZON_MAX)
            wait_for_slot(first + WARM)
            before = [each.arrived for each in flows]
            wait_for_slot(first + WARM + MEASURED)
            shares = [(each.arrived - earlier) / wanted for each, earlier in zip(flows, before, strict=True)]
            if all(0.9 <= each <= 1.1 for each in shares[:-1]) and shares[-1] < 0.8:
                break
        assert between.lost > 20
    *scheduled, free = shares
    assert all(0.9 <= each <= 1.1 for each in scheduled), shares
    assert free < 0.8, shares
