"""Slot rates: schedules of flows, written to the kernel side that applies them.

A flow's rate in slot s holds from `clock.start_ns(s)` to the next slot's start. Outside its schedule a flow
is not limited, so nothing stays limited when nobody renews it.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from ebpf import Codec, EbpfError, Map, Object, TypedMap
from ebpf.struct_ops import compile_control
from hostbpf import SOURCES
from hostbpf.clock import SlotClock
from hostbpf.flow import KEY, flow_key, packed_key
from machine.errors import BadInput
from machine.state import own_directory
from wire.flow import Flow

HORIZON_MAX = 32  # SLOTS_MAX
NEVER = (1 << 63) - 1  # later than any time of a clock, nanoseconds
PACED = ("slot_reno", "slot_cubic")  # congestion controls that obey schedules
_MBPS = 125_000  # bytes per second


class _Schedule(NamedTuple):
    """What is before the rates."""

    start_ns: int
    slot_ns: int
    slots: int
    base_slot: int
    version: int
    enforcer: int
    woken: int
    quiet: int


_FORM = "=qQIIIBBBx"
SCHEDULE = Codec(_FORM, _Schedule)
_PACKED = tuple(  # with the rates, by their number
    struct.Struct(f"{_FORM}{slots}Q{(HORIZON_MAX - slots) * 8}x") for slots in range(HORIZON_MAX + 1)
)


class Enforcer(IntEnum):
    """What makes a flow keep to its schedule: `enum enforcer` of slots.h."""

    PACING = 0
    EDT = 1
    HTB = 2


@dataclass(slots=True)  # not frozen: that takes thrice as long to make, and there is one for each decision
class TimedSchedule:
    """A schedule in times of CLOCK_MONOTONIC: rates in bytes/s of successive slots, from `start_ns` on."""

    start_ns: int
    slot_ns: int
    rates: Sequence[int]

    def index(self, now_ns: int) -> int | None:
        """Which rate holds; None: the flow is not limited."""
        index = (now_ns - self.start_ns) // self.slot_ns
        return index if 0 <= index < len(self.rates) else None

    def end_ns(self, index: int) -> int:
        """When that slot ends."""
        return self.start_ns + (index + 1) * self.slot_ns

    def silence(self, now_ns: int) -> tuple[int, int]:
        """When the first silence from `now_ns` on begins and ends; without one NEVER and the end."""
        rates, count = self.rates, len(self.rates)
        begin = max((now_ns - self.start_ns) // self.slot_ns, 0)
        while begin < count and rates[begin]:
            begin += 1
        if begin >= count:
            return NEVER, self.start_ns + count * self.slot_ns
        end = begin + 1
        while end < count and not rates[end]:
            end += 1
        return self.start_ns + begin * self.slot_ns, self.start_ns + end * self.slot_ns


class Enforcement(Protocol):
    """Who sees to schedules that flows do not keep by themselves: `hostbpf.rates.enforcers.Enforcers`."""

    def assign(self, flow: Flow) -> tuple[Enforcer, bool]:
        """The flow's enforcer, and whether the flow is woken when it need no longer be silent.

        Raises BadInput for a flow that this host does not have, EntrainError for one that cannot be limited.
        """

    def lowest(self, enforcer: Enforcer) -> int:
        """The lowest rate in bytes/s that it can do."""

    def changed(self, flow: Flow, schedule: TimedSchedule | None) -> None:
        """The flow's schedule is another one now, or none."""


class Schedules:
    """The schedules in force on one host, by flow."""

    def __init__(
        self,
        schedules: Map,
        clock: SlotClock,
        *,
        netns: int,
        link_mbps: float | None = None,
        enforcement: Enforcement | None = None,
    ) -> None:
        """`netns` is the cookie in the keys (0 where the map is one host's); `link_mbps` bounds the rates.

        Without `enforcement` only flows that pace themselves keep their schedules.
        """
        self.clock = clock
        self._map = TypedMap(schedules, KEY, SCHEDULE)
        self._netns = netns
        self._link_mbps = link_mbps
        self._highest = min(math.nextafter(1e6, 0), 1e6 if link_mbps is None else link_mbps) * _MBPS
        self._enforcement = enforcement

    def set(
        self,
        flow: Flow,
        slot: int,
        rates_mbps: Sequence[float],
        *,
        silence: bool = False,
        quiet: bool = False,
    ) -> None:
        """Limit `flow` to `rates_mbps` in the slots from `slot` on; replaces its schedule at once.

        What announces does so unless the schedule is `quiet`: then it takes back what it has announced.

        Rates are of payload. With `silence` a rate below what the flow's enforcer can do is 0; else it is
        BadInput, as are a negative rate, one above the link, too many slots, slots that have passed, and a
        flow that the host does not have. EntrainError for a flow that cannot be limited, or a full map.
        """
        rates = [rate * _MBPS for rate in rates_mbps]
        self.limit(flow, slot, rates, silence=silence, quiet=quiet)

    def limit(
        self,
        flow: Flow,
        slot: int,
        rates: Sequence[float],
        *,
        grain: int = 0,
        silence: bool = True,
        quiet: bool = False,
    ) -> None:
        """As `set`, by default with `silence`. `rates` are in bytes/s, rounded down to whole multiples of
        `grain` where there is one.

        A scheduler does it for every decision, when the processor's caches hold other things. So it calls
        little, and nothing of NumPy, which needs more for one operation than a loop over the slots.
        """
        if not 0 < len(rates) <= HORIZON_MAX:
            raise BadInput(f"flow {flow}: {len(rates)} slots; a schedule has 1 to {HORIZON_MAX}")
        whole: list[int] = []
        least = math.inf
        for rate in rates:
            if rate == 0.0:  # most are: a flow plans few slots
                whole.append(0)
                continue
            if not 0.0 <= rate <= self._highest:
                raise self._out_of_range(flow, slot + len(whole), rate)
            if grain:
                rate = int(rate / grain) * grain
            if 0 < rate < least:
                least = rate
            whole.append(round(rate))
        timed = TimedSchedule(self.clock.start_ns(slot), self.clock.slot_ns, whole)
        if timed.end_ns(len(rates) - 1) <= time.monotonic_ns():
            raise BadInput(f"flow {flow}: slots {slot} to {slot + len(rates) - 1} have passed")
        enforcer, woken, lowest = Enforcer.PACING, False, 1
        if self._enforcement is not None:
            enforcer, woken = self._enforcement.assign(flow)
            if enforcer != Enforcer.PACING:
                lowest = self._enforcement.lowest(enforcer)
        if least < lowest:
            if not silence:
                raise _too_low(flow, slot, rates, enforcer, lowest)
            both = zip(rates, whole, strict=True)
            timed.rates = [0 if min(exact, rounded) < lowest else rounded for exact, rounded in both]
        self._put(flow, slot, timed, enforcer, woken, quiet)
        if self._enforcement is not None:
            self._enforcement.changed(flow, timed)

    def _put(
        self, flow: Flow, slot: int, schedule: TimedSchedule, enforcer: Enforcer, woken: bool, quiet: bool
    ) -> None:
        value = _PACKED[len(schedule.rates)].pack(
            schedule.start_ns,
            schedule.slot_ns,
            len(schedule.rates),
            slot % (1 << 32),
            time.monotonic_ns() // 1000 % (1 << 32),  # differs from the version of any writer before
            enforcer,
            woken,
            quiet,
            *schedule.rates,
        )
        try:
            self._map.raw.update(packed_key(flow, self._netns), value)
        except EbpfError as error:
            raise EbpfError(f"flow {flow}: no room for its schedule\n{error}", errno=error.errno) from error

    def _out_of_range(self, flow: Flow, slot: int, rate: float) -> BadInput:
        limit = "1000000" if self._link_mbps is None else f"the link's {self._link_mbps:g}"
        return BadInput(
            f"flow {flow}: rate {rate / _MBPS:g} Mbit/s in slot {slot}; must be from 0 to {limit}"
        )

    def clear(self, flow: Flow) -> None:
        """Limit `flow` no more; it is not an error that it has no schedule."""
        self._map.pop(flow_key(flow, self._netns), None)
        if self._enforcement is not None:
            self._enforcement.changed(flow, None)

    def clear_all(self) -> None:
        """Limit no flow of this namespace any more, whoever had set its schedule."""
        for key in [each for each in self._map if each.netns == self._netns]:
            self._map.pop(key, None)

    def __len__(self) -> int:
        return sum(key.netns == self._netns for key in self._map)

    def clear_passed(self) -> int:
        """Forget schedules that have ended; returns how many."""
        now = time.monotonic_ns()
        found = ((key, self._map.get(key)) for key in list(self._map))  # others may clear theirs meanwhile
        passed = [key for key, each in found if each and each.start_ns + each.slots * each.slot_ns <= now]
        for key in passed:
            self._map.pop(key, None)
        return len(passed)


def _too_low(flow: Flow, slot: int, rates: Sequence[float], enforcer: Enforcer, lowest: int) -> BadInput:
    offset, rate = next((offset, rate) for offset, rate in enumerate(rates) if 0 < rate < lowest)
    return BadInput(
        f"flow {flow}: rate {rate / _MBPS:g} Mbit/s in slot {slot + offset}; the lowest that "
        f"{enforcer.name.lower()} can do is {lowest / _MBPS:g} (0 is silence)"
    )


@contextlib.contextmanager
def pacing_registered(*, directory: Path | None = None, restored: Map | None = None) -> Iterator[Map]:
    """Within, sockets of this machine can choose `PACED`; yields the map of schedules for `Schedules`.

    Both end with the process. Sockets that have one of the controls keep it, unlimited. With `directory`,
    in a BPF file system, the map is pinned there for `pinned_schedules`; the caller removes the pin, and
    clears the map. `restored` is the map in which other controls count the windows that they restored. A
    second process that tries gets an EbpfError with errno EEXIST.
    """
    with Object.open(compile_control(SOURCES / "slot_pacing.bpf.c")) as obj, contextlib.ExitStack() as stack:
        if restored is not None:
            obj.reuse_map("restored_windows", restored)
        obj.load()
        obj.check_record("flow_key", KEY)
        obj.check_record("schedule", SCHEDULE)
        obj.check_enum("enforcer", {f"ENFORCER_{each.name}": each for each in Enforcer})
        for name in PACED:
            stack.enter_context(obj.register(name))
        schedules = obj.maps["schedules"]
        if directory is not None:
            pin = directory / "schedules"
            own_directory(directory, 0o700)
            pin.unlink(missing_ok=True)  # registration is exclusive: its owner is dead
            schedules.pin(pin)
        else:
            stack.callback(schedules.clear)
        yield schedules


@contextlib.contextmanager
def pinned_schedules(directory: Path) -> Iterator[Map]:
    """The map that another process pinned in `directory`."""
    schedules = Map.open_pinned(directory / "schedules")
    try:
        yield schedules
    finally:
        os.close(schedules.fd)
