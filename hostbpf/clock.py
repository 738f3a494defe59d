"""The clock that numbers slots, alike on all hosts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from machine.errors import BadInput
from wire.slot_header import EPOCH_NS


@dataclass(frozen=True)
class SlotClock:
    """Slot s begins at `epoch_ns + s * slot_ns`, in CLOCK_MONOTONIC nanoseconds of this host."""

    slot_ns: int
    epoch_ns: int

    @classmethod
    def shared(cls, slot_ms: float) -> SlotClock:
        """Slots numbered from `EPOCH_NS`, alike on all hosts whose clocks agree."""
        if not 0 < slot_ms < math.inf:
            raise BadInput(f"slot_ms {slot_ms}: must be positive and finite")
        return cls(round(slot_ms * 1e6), time.monotonic_ns() - time.time_ns() + EPOCH_NS)

    def slot(self, now_ns: int | None = None) -> int:
        """The slot at `now_ns` (default: now)."""
        return ((time.monotonic_ns() if now_ns is None else now_ns) - self.epoch_ns) // self.slot_ns

    def start_ns(self, slot: int) -> int:
        """When `slot` begins."""
        return self.epoch_ns + slot * self.slot_ns
