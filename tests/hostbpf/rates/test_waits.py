"""What the kernel tells of a flow's waits: for whom it waited, and for how long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from hostbpf.rates.waits import Cause, Wait, explained
from mininet_topos.loss import lossy
from tests.hostbpf.conftest import Connection, Pair
from wire.flow import Flow

pytestmark = pytest.mark.root
PAUSE_S = 0.2


def longest(told: list[Wait], cause: Cause) -> Wait:
    """Not of all causes: on a busy machine a flow also waits for a processor, and that may be longer."""
    return max((each for each in told if each.cause == cause), key=lambda each: each.until_ns - each.from_ns)


def test_a_sender_that_writes_nothing_is_told_apart(pair: Pair, connect: Callable[..., Connection]) -> None:
    connection = connect("cubic")
    with explained(pair.index_a, netns=pair.a) as waits:
        connection.transfer(10_000)
        time.sleep(PAUSE_S)
        connection.transfer(10_000)
        wait = longest(waits.take(), Cause.DATA)
        assert not waits.take()
    assert wait.flow == Flow.of(connection.sender)
    assert wait.until_ns - wait.from_ns >= PAUSE_S * 1e9 / 2  # it may have begun late


def test_a_receiver_that_does_not_read_is_told_apart(pair: Pair, connect: Callable[..., Connection]) -> None:
    """A flow that is pushed into until it takes no more, and read from later."""
    connection = connect("cubic")
    with explained(pair.index_a, netns=pair.a) as waits:
        connection.sender.setblocking(False)
        written = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                written += connection.sender.send(bytes(100_000))
        time.sleep(PAUSE_S)
        while written:
            written -= len(connection.receiver.recv(1 << 20))
        told = waits.take()
    wait = longest(told, Cause.RECEIVER)
    assert wait.until_ns - wait.from_ns >= PAUSE_S * 1e9 / 2


def test_what_leaves_again_after_a_loss_is_counted(pair: Pair, connect: Callable[..., Connection]) -> None:
    pair.run(pair.a, "ip", "link", "set", "eth0", "gso_max_segs", "2")
    connection = connect("cubic")
    with explained(pair.index_a, netns=pair.a) as waits, lossy([pair.index_a], 0.1, netns=pair.a) as loss:
        connection.transfer(300_000)
        told = waits.take()
        lost = loss.count().lost
    repeated = [each for each in told if each.cause == Cause.REPEATED]
    assert lost
    assert sum(each.payload_bytes for each in repeated) >= 1448  # an acknowledgement is lost, too


def test_waits_within_a_time_are_counted_in_part() -> None:
    wait = Wait(Flow("10.0.0.1", 1, "10.0.0.2", 2), Cause.DATA, 100, 200, 1448)
    assert [wait.within(*each) for each in ((0, 100), (0, 150), (120, 130), (150, 300), (200, 300))] == [
        *(0, 50, 10, 50, 0)
    ]
