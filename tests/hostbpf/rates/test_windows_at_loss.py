"""Random loss does not keep a flow from its schedule: losses without a queue leave the window as it is."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
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
WARM, MEASURED, ROUNDS = 10, 20, 10  # slots, and how often a busy machine may try
RECOVERY = 3  # TCP_CA_Recovery: lost segments are sent again
INFO = struct.Struct("=xB66xI8xI")  # of struct tcp_info: the state, the round trip (microseconds), the window
MSS = 1448
SPARED = RATE_MBPS * 125_000 * 0.01  # bytes: acknowledgements may be late by 10 ms


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


def spare_window(sender: socket.socket) -> float | None:
    """The window (bytes) less what is on its way at RATE_MBPS; None while nothing is to be sent again."""
    state, rtt_us, window = INFO.unpack(sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size))
    return window * MSS - RATE_MBPS * rtt_us / 8 if state == RECOVERY else None


def test_a_schedule_is_kept_at_random_loss(pair: Pair, connect: Callable[..., Connection]) -> None:
    """Within some percent, while the same control without a schedule gets less on the same path. The window
    is not used up while lost segments are sent again, which at such a loss is most of the time."""
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
            spare = []
            while CLOCK.slot() < first + WARM + MEASURED:
                threading.Event().wait(0.01)
                spare += [spare_window(each.sender) for each in connections[:-1]]
            shares = [(each.arrived - earlier) / wanted for each, earlier in zip(flows, before, strict=True)]
            spared = statistics.median([each for each in spare if each is not None] or [0.0])
            if all(0.9 <= each <= 1.1 for each in shares[:-1]) and shares[-1] < 0.8 and spared > SPARED:
                break
        assert between.lost > 20
    *scheduled, free = shares
    assert all(0.9 <= each <= 1.1 for each in scheduled), shares
    assert free < 0.8, shares
    assert spared > SPARED
