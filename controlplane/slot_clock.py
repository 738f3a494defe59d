"""Tells switches which slot is the present one by their own clocks (the table `clock` of the program).

A switch that knows refuses carriers about other slots. It forgets after 268 s (2^28 us), since clocks drift.
Hosts follow when this machine's clock is set (`hostbpf.agent`), so the switches must follow at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import finsy as fy
from finsy.proto import p4r

from controlplane import constants as p4
from controlplane.fabric import Fabric
from controlplane.loads import LoadReader
from machine.errors import EntrainError
from wire.slot_header import EPOCH_NS, EPOCHS, LANES

EARLY, LATE = 0.25, LANES - 2.0
"""A carrier may come so many slots before its first slot begins, or after that slot has ended.

Late ones come from busy machines. They change nothing that matters any more, unless they are two epochs late.
"""
MOST_OFF = 0.05
"""Of a slot: how uncertain a switch's clock may be, by the time that reading it has taken."""
INTERVAL_S, RETRY_S = 10.0, 1.0
"""How often the clocks of switches are set, and after how long again where that has failed."""
_LOOK_S = 0.1
_STEP_NS = 1_000_000
"""By how much the clock of this machine must have been set for the switches' clocks to be set at once."""
_TURN = 1 << 48
_TRIES = 5


async def keep_clocks(tell: Callable[[], Awaitable[None]], on_event: Callable[[str], None]) -> None:
    """Keep the clocks of switches right with `tell`, which sets them, until cancelled.

    `on_event` gets what fails, once.
    """
    problem = ""
    while True:
        offset_ns, wait_s = _offset_ns(), INTERVAL_S
        try:
            await tell()
            problem = ""
        except EntrainError as error:
            wait_s = RETRY_S
            if str(error) != problem:
                problem = str(error)
                on_event(problem)
        until = time.monotonic() + wait_s
        while time.monotonic() < until and abs(_offset_ns() - offset_ns) < _STEP_NS:
            await asyncio.sleep(_LOOK_S)


async def set_clocks(fabric: Fabric, reader: LoadReader, slot_ms: float) -> None:
    """Set the clock of each switch that has hosts, for slots of `slot_ms`, by the clock of this machine.

    Raises EntrainError where a switch does not answer, or not fast enough for such slots.
    """
    if fabric.pipeline.checks_slots:
        leaves = dict.fromkeys(host.leaf for host in fabric.topology.hosts)
        await asyncio.gather(*(_set_clock(fabric, reader, leaf, round(slot_ms * 1e6)) for leaf in leaves))


async def forget_clocks(fabric: Fabric) -> None:
    """Let the switches forget which slot is the present one. Raises the error of one that does not answer."""
    if fabric.pipeline.checks_slots:
        nothing = fy.P4TableEntry(p4.TABLE_CLOCK, is_default_action=True).encode(fabric.pipeline.schema)
        update = p4r.Update(type=p4r.Update.MODIFY, entity=nothing)
        leaves = dict.fromkeys(host.leaf for host in fabric.topology.hosts)
        await asyncio.gather(*(fabric.write(leaf, [update]) for leaf in leaves))


async def _set_clock(fabric: Fabric, reader: LoadReader, switch: str, slot_ns: int) -> None:
    took_ns = 0
    for _ in range(_TRIES):
        before = time.time_ns()
        switch_us = await reader.read_clock(switch)
        took_ns = time.time_ns() - before
        if 0 <= took_ns <= 2 * MOST_OFF * slot_ns:
            entity = clock_entry(switch_us, before + took_ns // 2, slot_ns).encode(fabric.pipeline.schema)
            await fabric.write(switch, [p4r.Update(type=p4r.Update.MODIFY, entity=entity)])
            return
    raise EntrainError(
        f"{switch}: does not check which slots carriers are about: reading its clock took "
        f"{took_ns / 1e6:.1f} ms, too long for slots of {slot_ns / 1e6:g} ms"
    )


def _offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def clock_entry(switch_us: int, unix_ns: int, slot_ns: int) -> fy.P4TableEntry:
    """Return the entry that says: it was `unix_ns` when the switch's clock was `switch_us`."""
    turn_ns = slot_ns * LANES
    parameters = {
        p4.PARAM_SET_CLOCK_SINCE: switch_us,
        p4.PARAM_SET_CLOCK_TURN: (unix_ns - EPOCH_NS) * _TURN // turn_ns % (EPOCHS * _TURN),
        p4.PARAM_SET_CLOCK_TURNS_PER_US: _TURN * 1000 // turn_ns,
        p4.PARAM_SET_CLOCK_EARLY: round(EARLY * _TURN / LANES),
        p4.PARAM_SET_CLOCK_ALLOWED: round((EARLY + 1 + LATE) * _TURN / LANES),
    }
    action = fy.P4TableAction(p4.ACTION_SET_CLOCK, **parameters)
    return fy.P4TableEntry(p4.TABLE_CLOCK, action=action, is_default_action=True)
