"""Maps as Python mappings: the laws of a mapping hold on the kernel's maps."""

from __future__ import annotations

import contextlib
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebpf import EbpfError, Object, RingBuffer
from ebpf.libbpf import possible_cpus
from ebpf.maps import EXIST, NOEXIST
from machine.signals import ending_once

pytestmark = pytest.mark.root

PACKET = bytes(64)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


@pytest.fixture
def obj(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("basic")) as opened:
        opened.resize("table", 1000)
        opened.load()
        yield opened


def test_behaves_as_a_dict(obj: Object) -> None:
    table, model = obj.maps["table"], dict[bytes, bytes]()
    for i in range(300):
        table[u32(i * 7)] = model[u32(i * 7)] = u64(i)
    for i in range(0, 300, 3):
        del table[u32(i * 7)], model[u32(i * 7)]
    assert dict(table) == model
    assert len(table) == len(model)
    assert u32(7) in table
    assert u32(0) not in table
    assert table.get(u32(0)) is None
    with pytest.raises(KeyError):
        table[u32(0)]
    with pytest.raises(KeyError):
        del table[u32(0)]


def test_a_batched_lookup_equals_single_ones(obj: Object) -> None:
    table = obj.maps["table"]
    entries = {u32(i): u64(i * i) for i in range(900)}
    for key, value in entries.items():
        table[key] = value
    assert dict(table.lookup_batch()) == entries == dict(table)
    table.clear()
    assert table.lookup_batch() == []


def test_update_flags(obj: Object) -> None:
    table = obj.maps["table"]
    with pytest.raises(KeyError):
        table.update(u32(1), u64(1), EXIST)
    table.update(u32(1), u64(1), NOEXIST)
    with pytest.raises(KeyError):
        table.update(u32(1), u64(2), NOEXIST)
    assert table[u32(1)] == u64(1)


def test_wrong_sizes_and_full_map(obj: Object) -> None:
    table = obj.maps["table"]
    with pytest.raises(EbpfError, match="key has 3 bytes, not 4"):
        table[b"abc"] = u64(0)
    with pytest.raises(EbpfError, match="value has 4 bytes, not 8"):
        table[u32(0)] = u32(0)
    with pytest.raises(EbpfError, match="max_entries 1000"):
        for i in range(1001):
            table[u32(i)] = u64(i)


def test_threads_do_not_see_each_others_entries(obj: Object) -> None:
    table = obj.maps["table"]

    def work(thread: int) -> int:
        wrong = 0
        for i in range(3000):
            key = u32(thread * 100 + i % 100)
            table[key] = u64(thread << 32 | i)
            wrong += table[key] != u64(thread << 32 | i)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0] * 4


def test_values_per_cpu(obj: Object) -> None:
    counters = obj.maps["counters"]
    values = [u32(i + 1) for i in range(possible_cpus())]
    counters.update_cpus(u32(1), values)
    assert counters.lookup_cpus(u32(1)) == values
    with pytest.raises(TypeError, match="lookup_cpus"):
        counters[u32(1)]


def test_globals_are_shared_memory(obj: Object) -> None:
    place = obj.variable("runs")
    assert place.section == ".bss"
    with obj.maps[".bss"].mmap() as memory:
        obj.programs["count"].test_run(PACKET, repeat=5)
        assert memory[place.offset : place.offset + 8] == u64(5)
        memory[place.offset : place.offset + 8] = u64(100)
        obj.programs["count"].test_run(PACKET)
        assert memory[place.offset : place.offset + 8] == u64(101)


def test_map_is_shared_by_pinning(obj: Object, tmp_path: Path) -> None:
    with pytest.raises(EbpfError, match="cannot pin"):
        obj.maps["table"].pin(tmp_path / "not-a-bpf-file-system")


def test_ring_buffer_delivers_in_order_and_raises(obj: Object) -> None:
    received: list[int] = []
    ring = RingBuffer(obj.maps["events"], lambda data: received.append(*struct.unpack("=I", data)))
    for size in (64, 100, 1500):
        obj.programs["count"].test_run(bytes(size))
    assert ring.poll(0) == 3
    assert received == [64, 100, 1500]
    ring.close()
    ring.close()

    def fail(_: bytes) -> None:
        raise ValueError("from the callback")

    broken = RingBuffer(obj.maps["events"], fail)
    obj.programs["count"].test_run(PACKET)
    with pytest.raises(ValueError, match="from the callback"):
        broken.poll(0)
    broken.close()
    with pytest.raises(EbpfError, match="not usable as a ring buffer"):
        RingBuffer(obj.maps["table"], received.append)  # type: ignore[arg-type]


EPOLL_WAITS = {"232", "281", "22"}
"""Numbers of epoll_wait and epoll_pwait on x86-64, and of epoll_pwait on arm64."""


def test_a_signal_that_arrives_with_a_record_raises_its_exception_alone(obj: Object) -> None:
    """The signal's handler then runs before the callback's first line, where Python drops exceptions."""
    syscall = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")

    def interrupt() -> None:
        while syscall.read_text().split()[0] not in EPOLL_WAITS:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)  # in this thread, so it does not end the wait
        obj.programs["count"].test_run(PACKET)

    ring = RingBuffer(obj.maps["events"], lambda _: None)
    thread = threading.Thread(target=interrupt)
    with contextlib.closing(ring), pytest.raises(KeyboardInterrupt), ending_once():
        thread.start()
        ring.poll(20_000)
        thread.join()
        threading.Event().wait(20)
        pytest.fail("the signal is lost")
