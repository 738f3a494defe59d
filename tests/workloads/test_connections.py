"""One connection at a time: whatever pieces the bytes come in, they arrive, are added, and are checked."""

from __future__ import annotations

import fcntl
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.connections import Incoming, Outgoing, PeerLost, raw

SIOCOUTQNSD = 0x894B
"""Asks a socket for the bytes that it has never sent."""


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket, select.epoll]]:
    """Both ends of a TCP connection and an epoll."""
    with socket.create_server(("127.8.1.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    with left, right, select.epoll() as epoll:
        yield left, right, epoll


def on_the_wire(values: np.ndarray, iteration: int) -> bytearray:
    """What an Outgoing sends for `values` in step 0."""
    with pair() as (left, right, epoll):
        outgoing = Outgoing(left, 1, "there", epoll)
        outgoing.begin(raw(values), iteration, 0)
        wire = bytearray()
        right.settimeout(30)
        while len(wire) < 32 + values.nbytes:
            outgoing.advance()
            wire += right.recv(1 << 20)
        return wire


def test_a_socket_takes_no_more_than_the_backlog_allows() -> None:
    """Beyond what the peer's window takes."""
    taken = []
    for unsent_bytes in (4096, 1 << 20):
        with pair() as (left, _, epoll):
            left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            outgoing = Outgoing(left, 1, "there", epoll, unsent_bytes)
            outgoing.begin(raw(np.zeros(1 << 22, np.int32)), 0, 0)
            while epoll.poll(0.05):
                assert not outgoing.advance()
            unsent = int.from_bytes(fcntl.ioctl(left.fileno(), SIOCOUTQNSD, bytes(4)), "little")
            assert unsent <= unsent_bytes + 65536  # what a packet takes at once
            taken.append(unsent)
    assert taken[1] > 2 * taken[0]


def deliver(connection: Incoming, epoll: select.epoll) -> bool:
    """Advance until it is complete, waiting on events alone; False when no event comes."""
    while not connection.advance():
        if not epoll.poll(30):
            return False
    return True


@given(
    st.integers(1, 200_000),
    st.booleans(),
    st.lists(st.integers(1, 300_000), max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_values_arrive_in_any_pieces(elements: int, reduce: bool, cuts: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    sent = generator.integers(-(2**31), 2**31, elements, np.int32)
    own = generator.integers(-(2**31), 2**31, elements, np.int32)
    wire = on_the_wire(sent, iteration=3)
    with pair() as (left, right, epoll):
        incoming = Incoming(right, 0, ("here", 1), "int32", epoll)
        target = own.copy()
        incoming.begin(target, reduce, 3, 0)
        done = False
        for piece in cuts:
            left.sendall(wire[:piece])
            del wire[:piece]
            done = incoming.advance()
        left.sendall(wire)
        assert done or deliver(incoming, epoll)
        with np.errstate(over="ignore"):
            assert (target == (own + sent if reduce else sent)).all()


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize(
    ("elements", "first"),
    [
        (6_250, 10),  # a part of the header, after which fewer bytes are left than at first
        (6_250, 32),  # the header alone, as when the sender loses its processor behind it
        (70_000, 32 + 256 * 1024),  # all that one call takes, and a short rest
    ],
)
def test_the_rest_of_a_transfer_wakes_the_receiver(elements: int, first: int, reduce: bool) -> None:
    values = np.arange(elements, dtype=np.int32)
    wire = on_the_wire(values, iteration=0)
    with pair() as (left, right, epoll):
        incoming = Incoming(right, 0, ("here", 1), "int32", epoll)
        target = np.zeros_like(values)
        incoming.begin(target, reduce, 0, 0)
        arrived = 0
        left.sendall(wire[:first])
        while arrived < first:
            assert not incoming.advance()
            arrived = incoming.moved
        while epoll.poll(0):  # these events are of the first part
            pass
        left.sendall(wire[first:])
        complete = False
        while not complete:
            assert epoll.poll(30), f"not woken for the last {len(wire) - incoming.moved} bytes"
            complete = incoming.advance()
        assert (target == values).all()


def test_the_receiver_is_woken_long_before_the_sender_s_window_is_full() -> None:
    values = np.arange(1_000_000, dtype=np.int32)
    wire = on_the_wire(values, iteration=0)
    with pair() as (left, right, epoll):
        right.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        window = right.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        incoming = Incoming(right, 0, ("here", 1), "int32", epoll)
        incoming.begin(np.zeros_like(values), False, 0, 0)
        sent = 0
        while not epoll.poll(0):
            sent += left.send(wire[sent : sent + 1024])
            while len(right.recv(1 << 20, socket.MSG_PEEK)) < sent:
                pass
        assert sent <= window / 2


def test_a_transfer_larger_than_all_buffers_waits_for_the_receiver() -> None:
    values = np.arange(10_000_000, dtype=np.int32)
    with pair() as (left, right, epoll):
        outgoing = Outgoing(left, 1, "there", epoll)
        incoming = Incoming(right, 0, ("here", 1), "int32", epoll)
        target = np.zeros_like(values)
        outgoing.begin(raw(values), 0, 5)
        incoming.begin(target, False, 0, 5)
        assert not outgoing.advance()  # the kernel does not take 40 MB
        sent = received = False
        while not (sent and received):
            assert epoll.poll(30)
            sent = sent or outgoing.advance()
            received = received or incoming.advance()
        assert (target == values).all()


def test_transfers_one_after_another_are_kept_apart() -> None:
    with pair() as (left, right, epoll):
        outgoing = Outgoing(left, 1, "there", epoll)
        incoming = Incoming(right, 0, ("here", 1), "int32", epoll)
        parts = [np.full(1000, value, np.int32) for value in range(5)]
        for step, part in enumerate(parts):  # the sender is five steps ahead of the receiver
            outgoing.begin(raw(part), 0, step)
            while not outgoing.advance():
                assert epoll.poll(30)
        for step, part in enumerate(parts):
            target = np.zeros(1000, np.int32)
            incoming.begin(target, True, 0, step)
            assert deliver(incoming, epoll)
            assert (target == part).all()


@pytest.mark.parametrize("size", [0, 10, 32, 33, 431])
def test_an_end_in_the_middle_is_told(size: int) -> None:
    wire = on_the_wire(np.zeros(100, np.int32), iteration=0)
    assert len(wire) == 432
    with pair() as (left, right, epoll):
        incoming = Incoming(right, 7, ("10.0.0.7", 1234), "int32", epoll)
        incoming.begin(np.zeros(100, np.int32), True, 0, 0)
        left.sendall(wire[:size])
        left.close()
        with pytest.raises(PeerLost, match=r"rank 7 at 10\.0\.0\.7:1234 closed the connection"):
            deliver(incoming, epoll)
