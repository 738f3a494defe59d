"""A barrier for the steps of a job's ranks, in shared memory.

A step may take a few milliseconds, and a message to each rank and back would be a large part of that: each
message wakes a process, which may take the processor from the sender. Here every rank writes its own counter
only, so that no two write the same, and one system call wakes all who wait (futex(2)).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from machine.errors import MissingTool
from workloads.rendezvous import JobFailed

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_ALL = 2**31 - 1
_LINE = 64
"""Bytes between two counters, so that each has a cache line of its own."""
_LOOK_S = 0.05
"""How often a rank that waits looks whether the job has failed."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_LOOK = _Timespec(0, round(_LOOK_S * 1e9))


class StepBarrier:
    """One rank's end. Rank 0 calls `create` before any rank makes its own.

    Raises MissingTool on a processor whose system calls it does not know.
    """

    @staticmethod
    def create(path: Path, ranks: int) -> None:
        """Create the file of the counters."""
        path.write_bytes(bytes(_LINE * ranks))

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._rank, self._ranks, self._turn = rank, ranks, 0
        machine = os.uname().machine
        if machine not in _SYS_FUTEX:
            raise MissingTool(f"barrier: is not known to work on {machine}; leave the key out")
        self._number = _SYS_FUTEX[machine]
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), _LINE * ranks)
        self._counters = [ctypes.c_uint32.from_buffer(memory, _LINE * each) for each in range(ranks)]

    def wait(self, check: Callable[[], None], timeout_s: float) -> None:
        """Wait until all ranks have called this as often. `check` raises if the job has failed.

        Raises JobFailed on rank 0 if a rank does not come within `timeout_s`.
        """
        self._turn = self._turn + 1 & 0xFFFFFFFF
        if self._rank:
            self._arrive(1)
            self._await(0, check)
            return
        deadline = time.monotonic() + timeout_s
        for rank in range(1, self._ranks):
            self._await(rank, check, deadline, timeout_s)
        self._arrive(_ALL)

    def _arrive(self, wakes: int) -> None:
        counter = self._counters[self._rank]
        counter.value = self._turn
        self._syscall(self._number, ctypes.byref(counter), _FUTEX_WAKE, wakes, None, None, 0)

    def _await(
        self, rank: int, check: Callable[[], None], deadline: float = float("inf"), timeout_s: float = 0.0
    ) -> None:
        counter = self._counters[rank]
        while (seen := counter.value) != self._turn:
            arguments = (ctypes.byref(counter), _FUTEX_WAIT, seen, ctypes.byref(_LOOK), None, 0)
            if self._syscall(self._number, *arguments) and ctypes.get_errno() == errno.ETIMEDOUT:
                check()
                if time.monotonic() > deadline:
                    raise JobFailed(f"rank {rank} did not end its step within {timeout_s:g} s")
