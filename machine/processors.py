"""The machine's processors: how busy they were, and how to have them at once when they are needed."""

from __future__ import annotations

import contextlib
import multiprocessing
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

LATENCY = Path("/dev/cpu_dma_latency")
"""The kernel's interface for its users' demands on the latency of processors (PM QoS)."""


def share_memory() -> bool:
    """Return whether processes can work in parallel: their locks need a /dev/shm that can be written."""
    try:
        multiprocessing.Lock()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def awake(device: Path = LATENCY) -> Iterator[bool]:
    """Keep idle processors polling instead of asleep; return whether the kernel allows it.

    A processor of a virtual machine that sleeps is given to others, and comes back late: packets and timers
    then wait for milliseconds. The kernel drops the demand when this process ends, whatever ends it.
    """
    try:
        file = device.open("wb", buffering=0)
    except OSError:
        yield False
        return
    with file:
        file.write(struct.pack("=i", 0))
        yield True


@dataclass(frozen=True)
class Use:
    """What processors did for some time: parts of their time, 0 to 1.

    `busy` is the time that was not idle, by any process. `stolen` is that in which there was work, and the
    machine's own host had given the processors to others ("steal time").
    """

    busy: float
    stolen: float

    @classmethod
    def between(cls, before: object, after: object) -> Self:
        """Return the use between two `psutil.cpu_times`."""
        spent = {key: getattr(after, key) - getattr(before, key) for key in type(after)._fields}  # type: ignore[attr-defined]
        spent = {key: value for key, value in spent.items() if not key.startswith("guest")}  # part of user
        total = sum(spent.values())
        if not total:
            return cls(0.0, 0.0)
        idle = spent["idle"] + spent.get("iowait", 0.0)
        return cls(1 - idle / total, spent.get("steal", 0.0) / total)

    @classmethod
    def since(cls, before: object) -> Self:
        """Return the use since `before`, an earlier `psutil.cpu_times`."""
        return cls.between(before, psutil.cpu_times())

    def figures(self) -> dict[str, float]:
        """Return the figures under the names that results have."""
        return {"processor_busy": self.busy, "processor_stolen": self.stolen}
