"""A switch's memory does not grow with the jobs and controllers that come and go."""

from __future__ import annotations

import asyncio
import ctypes as ct
import gc
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath
from tests.softswitch.fake_datapath import FakeDatapath
from tests.softswitch.harness import DELETE, INSERT, Served, action, entry, l2, lpm, serving, ternary, update

WARM_UP = 100
ROUNDS = 200
WINDOWS = 3
"""How often so many rounds are measured: what leaks grows in each, a cache in some."""
MOST_BYTES, MOST_BLOCKS = 200.0, 1.0
"""Of one round. gRPC keeps the operations of a read that was cut off: 96 bytes, on either side."""


class _MallocInfo(ct.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ct.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def in_use() -> tuple[int, int]:
    """Return the bytes that C code of this process has allocated, and the number of Python's blocks."""
    gc.collect()
    mallinfo2 = ct.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    found = mallinfo2()
    return found.uordblks + found.hblkhd, sys.getallocatedblocks()


Once = Callable[[Served, Any], Awaitable[None]]


def growth(once: Once, load: Callable[[bytes], Any]) -> tuple[float, float]:
    """Return by how many bytes and blocks this process grows each time that `once` runs, at least."""

    async def measured() -> tuple[float, float]:
        async with serving(load=load) as bench:
            controller = await bench.primary()
            for _ in range(WARM_UP):
                await once(bench, controller)
            seen = [in_use()]
            for _ in range(WINDOWS):
                for _ in range(ROUNDS):
                    await once(bench, controller)
                seen.append(in_use())
        grown = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(seen)]
        print(f"bytes and blocks in {ROUNDS} rounds: {grown}")
        return min(each[0] for each in grown) / ROUNDS, min(each[1] for each in grown) / ROUNDS

    return asyncio.run(measured())


def loaded(program: bytes) -> Datapath:
    return Datapath.load(load_program(program), name="memory-test", netless=True)


JOB = (
    l2(0x020000000001),
    l2(0x020000000002, 2),
    entry("route", {1: lpm(0x0A000000, 8)}, action("set_nexthop", 1)),
    entry("acl", {1: ternary(0x0A000001, 0xFFFFFFFF)}, action("permit"), priority=1),
)


async def job(_: Served, controller: Any) -> None:
    """Write what a job needs, read it back, and remove it."""
    await controller.write(*(update(INSERT, each) for each in JOB))
    assert len(await controller.read(entry("l2"))) == 2
    await controller.write(*(update(DELETE, each) for each in JOB))


async def connection(bench: Served, _: Any) -> None:
    """Connect, ask who is primary, and leave."""
    other = bench.controller(None)
    await other.arbitrate()
    await other.close()
    bench.controllers.remove(other)


@pytest.mark.parametrize("load", [FakeDatapath, pytest.param(loaded, marks=pytest.mark.bpf)])
def test_memory_does_not_grow_with_jobs(load: Callable[[bytes], Any]) -> None:
    grown, blocks = growth(job, load)
    assert grown < MOST_BYTES
    assert blocks < MOST_BLOCKS


def test_memory_does_not_grow_with_connections() -> None:
    grown, blocks = growth(connection, FakeDatapath)
    assert grown < 5 * MOST_BYTES
    assert blocks < MOST_BLOCKS
