"""The slot header: its definition, read from `slot_header.toml`, and the codec based on it.

A carrier is an Ethernet frame of EtherType `ETHERTYPE`. It has the fixed fields, then K lanes, then a packet
of the protocol that `next_ethertype` names. Slot s travels in lane s mod K, with epoch s div K.
"""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

DEFINITION = Path(__file__).with_name("slot_header.toml")
_DEFINED: dict[str, Any] = tomllib.loads(DEFINITION.read_text())


@dataclass(frozen=True)
class FieldSpec:
    """One field of the header: its name, width in bits, meaning, value in a new header, and signedness."""

    name: str
    bits: int
    doc: str
    start: int = 0
    signed: bool = False


ETHERTYPE: int = _DEFINED["ethertype"]
LANES: int = _DEFINED["lanes"]
RATE_UNIT_MBPS: int = _DEFINED["rate_unit_mbps"]
LATE_EPOCHS: int = _DEFINED["late_epochs"]
HEADROOM_OFFSET: int = _DEFINED["headroom_offset"]
FIELDS = tuple(FieldSpec(**spec) for spec in _DEFINED["fields"])
LANE_FIELDS = tuple(FieldSpec(**spec) for spec in _DEFINED["lane"])
VERSION = next(spec.start for spec in FIELDS if spec.name == "version")
FIXED_BYTES = sum(spec.bits for spec in FIELDS) // 8
LANE_BYTES = sum(spec.bits for spec in LANE_FIELDS) // 8
HEADER_BYTES = FIXED_BYTES + LANES * LANE_BYTES
MAX_U32 = 2**32 - 1
_PLACES = tuple(  # name, shift and mask of each field of the fixed part, taken as one number
    (spec.name, sum(later.bits for later in FIELDS[i + 1 :]), (1 << spec.bits) - 1)
    for i, spec in enumerate(FIELDS)
)
_LANE = struct.Struct("!" + "".join("i" if spec.signed else "I" for spec in LANE_FIELDS))


class Kind(IntEnum):
    """A carrier's purpose (`kind` of the header)."""

    SCHEDULE = _DEFINED["kinds"]["schedule"]
    FEEDBACK = _DEFINED["kinds"]["feedback"]
    QUERY = _DEFINED["kinds"]["query"]


class Lane(NamedTuple):
    """One slot in a carrier. `delta`, `load` and `headroom` are in rate units (1 Mbit/s by default)."""

    epoch: int = 0
    delta: int = 0
    load: int = 0
    headroom: int = MAX_U32

    @property
    def left(self) -> int | None:
        """The free rate of the path's fullest link, negative if overbooked; None if no switch set it."""
        return None if self.headroom == MAX_U32 else self.headroom - HEADROOM_OFFSET


@dataclass(frozen=True, kw_only=True)
class SlotHeader:
    """A slot header, with the defined fields. `lanes` has LANES entries, by lane rather than by slot."""

    version: int = VERSION
    kind: Kind = Kind.SCHEDULE
    hops: int = 0
    next_ethertype: int = 0x0800
    base_slot: int = 0
    port: int = 0
    flow: int = 0
    bytes_received: int = 0
    bytes_onward: int = 0
    lanes: tuple[Lane, ...] = field(default_factory=lambda: (Lane(),) * LANES)

    def pack(self) -> bytes:
        """Return the header's HEADER_BYTES bytes. Raises ValueError if a value does not fit its field."""
        if len(self.lanes) != LANES:
            raise ValueError(f"a slot header has {LANES} lanes, not {len(self.lanes)}")
        fixed = _pack(FIELDS, [int(getattr(self, spec.name)) for spec in FIELDS])
        return fixed + b"".join(_pack(LANE_FIELDS, lane) for lane in self.lanes)

    @classmethod
    def unpack(cls, data: bytes) -> SlotHeader:
        """Read a header from the start of `data`. Raises ValueError if it is too short or not one."""
        if len(data) < HEADER_BYTES:
            raise ValueError(f"a slot header takes {HEADER_BYTES} bytes, got {len(data)}")
        number = int.from_bytes(data[:FIXED_BYTES], "big")
        values = {name: number >> shift & mask for name, shift, mask in _PLACES}
        if values["version"] != VERSION:
            raise ValueError(f"slot header has version {values['version']}, expected {VERSION}")
        kind = Kind(values.pop("kind"))
        lanes = tuple(map(Lane._make, _LANE.iter_unpack(data[FIXED_BYTES:HEADER_BYTES])))
        return cls(kind=kind, lanes=lanes, **values)


def lane_of(slot: int) -> int:
    """Return the lane in which slot `slot` travels, which is also its register in the switch."""
    return slot % LANES


def epoch_of(slot: int) -> int:
    """Return the epoch of slot `slot`."""
    return slot // LANES


def announcement(base_slot: int, deltas: Sequence[int]) -> tuple[Lane, ...]:
    """Return the lanes of a SCHEDULE that changes slot base_slot + i by deltas[i] rate units.

    Raises ValueError for more than LANES slots.
    """
    if len(deltas) > LANES:
        raise ValueError(f"{len(deltas)} slots announced, the horizon is {LANES}")
    lanes = [Lane()] * LANES
    for offset in range(LANES):
        slot = base_slot + offset
        delta = deltas[offset] if offset < len(deltas) else 0
        lanes[lane_of(slot)] = Lane(epoch=epoch_of(slot), delta=delta)
    return tuple(lanes)


def _pack(specs: Sequence[FieldSpec], values: Sequence[int]) -> bytes:
    number = bits = 0
    for spec, value in zip(specs, values, strict=True):
        least = -(1 << spec.bits - 1) if spec.signed else 0
        if not 0 <= value - least < 1 << spec.bits:
            raise ValueError(f"{spec.name} = {value} does not fit {spec.bits} bits")
        number = number << spec.bits | value & (1 << spec.bits) - 1
        bits += spec.bits
    return number.to_bytes(bits // 8, "big")
