"""The memory that the datapath and its BPF program share (`struct shared`)."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Literal

Kind = Literal["B", "H", "I", "Q"]


class Shared:
    """Typed access to the shared memory. Words are written whole, so the program never sees half of one."""

    def __init__(self, memory: mmap.mmap, base: int, members: Mapping[str, tuple[int, int]]) -> None:
        self._memory = memory
        self._view = memoryview(memory)
        self._base = base
        self._members = members
        self._words: dict[str, memoryview] = {}

    def view(self, name: str, kind: Kind = "Q") -> memoryview:
        """Return member `name` as an array of native integers (`kind` as in `struct`: B, H, I or Q)."""
        key = name + kind
        if key not in self._words:
            offset, size = self._members[name]
            raw = self._view[self._base + offset : self._base + offset + size]
            self._words[key] = raw.cast(kind)
        return self._words[key]

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def close(self) -> None:
        for view in self._words.values():
            view.release()
        self._words.clear()
        self._view.release()
        self._memory.close()


def words(raw: bytes) -> list[int]:
    """Return bytes as native 64-bit words."""
    return list(memoryview(raw).cast("Q"))


class Slots:
    """Allocates numbers from 0 to size - 1, the lowest free one first, as BMv2 does with handles."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._next = 0
        self._free: list[int] = []

    def take(self) -> int | None:
        """Return a free number, or None."""
        if self._free:
            self._free.sort(reverse=True)
            return self._free.pop()
        if self._next == self.size:
            return None
        self._next += 1
        return self._next - 1

    def give(self, number: int) -> None:
        self._free.append(number)
