"""The relay that delays a link: nothing is changed, lost or overtaken, and nothing arrives too early."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.topology import Link
from ebpf import in_netns
from machine.patience import patience
from machine.record import Record
from mininet_topos import relays
from mininet_topos.relays import Relay
from tests.hostbpf.conftest import B, Connection, Pair
from tests.hostbpf.relays import apart

pytestmark = pytest.mark.root
DELAY_MS, JITTER_MS = 10.0, 4.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two hosts that only a relay can join; see `between`."""
    with apart(tmp_path) as found:
        yield found


@contextmanager
def relayed(pair: Pair, tmp_path: Path, delay_ms: float, jitter_ms: float = 0.0) -> Iterator[Relay]:
    link = Link("left", 0, "right", 0, 1000.0, 0, delay_ms=delay_ms, jitter_ms=jitter_ms)
    with Record("test-relays", records=tmp_path / "relays") as record:
        between = pair.a.replace("tha", "thx")
        for name in (pair.a, pair.b):
            relays.steer(link, "eth0", ["ip", "netns", "exec", name])
        relay = relays.start(record, link, ("left", "right"), tmp_path, netns=between)
        relay.child.wait_ready(relays.READY_TIMEOUT_S)
        yield relay
        relay.child.end()


@pytest.mark.parametrize("jitter_ms", [0.0, JITTER_MS])
def test_datagrams_arrive_in_order_and_not_before_the_delay(
    pair: Pair, tmp_path: Path, jitter_ms: float
) -> None:
    def receiving() -> socket.socket:
        result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        result.bind((B, 5000))
        result.settimeout(patience(60))
        return result

    number, took = 100, []
    with relayed(pair, tmp_path, DELAY_MS, jitter_ms) as relay:
        with in_netns(pair.b, receiving) as receiver, in_netns(pair.a, _datagrams) as sender:
            sender.sendto(b"who has it", (B, 5000))  # which takes a round trip more
            receiver.recv(100)
            for each in range(number):
                began = time.monotonic()
                sender.sendto(str(each).encode(), (B, 5000))
                assert receiver.recv(100) == str(each).encode()
                took.append((time.monotonic() - began) * 1e3)
            for each in range(number):
                sender.sendto(str(each).encode(), (B, 5000))
            assert [int(receiver.recv(100)) for _ in range(number)] == list(range(number))
        passed = relays.passed([relay])
    assert min(took) >= DELAY_MS - jitter_ms
    if jitter_ms:
        assert max(took) - min(took) > jitter_ms  # of twice as much
    assert passed.frames >= 2 * number
    assert not passed.dropped
    assert passed.late_ms_p99 is not None
    nothing = passed.since(passed)
    assert (nothing.frames, nothing.late_ms_p99) == (0, None)


def _datagrams() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


@pytest.mark.parametrize("offloads", [False, True])
def test_a_stream_arrives_as_it_was_and_offloaded_packets_pass_whole(
    pair: Pair, connect: Callable[..., Connection], tmp_path: Path, offloads: bool
) -> None:
    size = 4_000_000
    if offloads:
        for name in (pair.a, pair.b):
            pair.run(name, "ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", "gro", "on")
    with relayed(pair, tmp_path, 1.0) as relay:
        connection = connect("cubic")
        data = bytes(index * 7 % 251 for index in range(100_000)) * (size // 100_000)
        thread = threading.Thread(target=connection.sender.sendall, args=(data,))
        thread.start()
        digest, arrived = hashlib.sha256(), 0
        while arrived < size:
            part = connection.receiver.recv(1 << 20)
            assert part
            digest.update(part)
            arrived += len(part)
        thread.join()
        passed = relays.passed([relay])
    assert digest.digest() == hashlib.sha256(data).digest()
    assert not passed.dropped
    frames = size / 1448
    assert passed.frames < frames if offloads else passed.frames >= frames


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one processor")
def test_one_processor_relays_and_another_receives(pair: Pair, tmp_path: Path) -> None:
    with relayed(pair, tmp_path, 1.0) as relay:
        own = os.sched_getaffinity(relay.child.process.pid)
        masks = [
            pair.run(name, "cat", "/sys/class/net/eth0/queues/rx-0/rps_cpus") for name in (pair.a, pair.b)
        ]
    received = int(masks[0].replace(",", ""), 16)
    assert len(own) == received.bit_count() == 1
    assert not received & (1 << own.pop())
    assert masks[0] == masks[1]


@pytest.mark.parametrize("processor", [0, 5, 31, 32, 70])
def test_a_mask_is_read_as_the_kernel_writes_it(processor: int) -> None:
    """In groups of 32 bits, the highest first."""
    groups = relays._mask(processor).split(",")
    assert sum(int(group, 16) << 32 * place for place, group in enumerate(reversed(groups))) == 1 << processor
    assert all(len(group) == 8 for group in groups[1:])


def test_it_ends_with_its_owner(pair: Pair, tmp_path: Path) -> None:
    with relayed(pair, tmp_path, 1.0) as relay:
        process = relay.child.process
        assert process.poll() is None
    assert process.returncode is not None


def test_what_cannot_be_compiled_shows_the_compilers_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "relay.c"
    broken.write_text("int main(void) { return nothing; }")
    monkeypatch.setattr(relays, "SOURCE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Exception, match="nothing") as caught:
        relays.compiled()
    assert "the compiler failed" in str(caught.value)
    assert not list((tmp_path / "entrain").iterdir())
