"""The slot header: its definition, read from `slot_header.toml`, and the codec based on it.

A carrier is an Ethernet frame of EtherType `ETHERTYPE`. It has the fields that switches use, K lanes, the
fields that hosts alone use, and a packet of the protocol that `next_ethertype` names. Slot s travels in lane
s mod K; its epoch is s div K, modulo EPOCHS.
"""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from wire import DEFINITION

_DEFINED: dict[str, Any] = tomllib.loads(DEFINITION.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class FieldSpec:
    """One field of the header: its name, width in bits, meaning, and value in a new header."""

    name: str
    bits: int
    doc: str
    start: int = 0


ETHERTYPE: int = _DEFINED["ethertype"]
LANES: int = _DEFINED["lanes"]
RATE_UNIT_MBPS: int = _DEFINED["rate_unit_mbps"]
HEADROOM_OFFSET: int = _DEFINED["headroom_offset"]
FIELDS = tuple(FieldSpec(**spec) for spec in _DEFINED["fields"])
LANE_FIELDS = tuple(FieldSpec(**spec) for spec in _DEFINED["lane"])
TAIL_FIELDS = tuple(FieldSpec(**spec) for spec in _DEFINED["tail"])
VERSION = next(spec.start for spec in FIELDS if spec.name == "version")
EPOCHS = 1 << next(spec.bits for spec in FIELDS if spec.name == "epoch")
EPOCH_NS = 1_767_225_600 * 10**9
"""Unix time of slot 0, 2026-01-01, in ns: slots of 60 ms fit the slot header's 32 bits for 8 years."""
SLOTS = EPOCHS * LANES
"""From so many slots on, the numbers in lanes repeat."""
FIXED_BYTES = sum(spec.bits for spec in FIELDS) // 8
LANE_BYTES = sum(spec.bits for spec in LANE_FIELDS) // 8
TAIL_BYTES = sum(spec.bits for spec in TAIL_FIELDS) // 8
_TAIL_AT = FIXED_BYTES + LANES * LANE_BYTES
HEADER_BYTES = _TAIL_AT + TAIL_BYTES
MAX_U32 = 2**32 - 1
_LETTERS = [{8: "B", 16: "H", 32: "I", 64: "Q"}.get(spec.bits) for spec in LANE_FIELDS]
_LANE = struct.Struct("!" + "".join(filter(None, _LETTERS))) if None not in _LETTERS else None
"""Reads lanes several times as fast as shifts do; None where a field has another width."""
_AMOUNT = [spec.name for spec in LANE_FIELDS].index("amount")
_as_tuple = tuple.__new__  # makes a lane without a call of Python


def _places(specs: Sequence[FieldSpec]) -> tuple[tuple[str, int, int], ...]:
    """Return name, shift and mask of each of `specs`, taken as one number."""
    return tuple(
        (spec.name, sum(later.bits for later in specs[i + 1 :]), (1 << spec.bits) - 1)
        for i, spec in enumerate(specs)
    )


_PLACES, _LANE_PLACES, _TAIL_PLACES = map(_places, (FIELDS, LANE_FIELDS, TAIL_FIELDS))


class Kind(IntEnum):
    """A carrier's purpose (`kind` of the header)."""

    SCHEDULE = _DEFINED["kinds"]["schedule"]
    FEEDBACK = _DEFINED["kinds"]["feedback"]
    QUERY = _DEFINED["kinds"]["query"]


class Lane(NamedTuple):
    """One slot in a carrier, in rate units (1 Mbit/s by default).

    `delta` has the sign of the header's `lowers` and the magnitude of the lane's `amount`.
    """

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
    port: int = 0
    epoch: int = 0
    first_lane: int = 0
    lanes: tuple[Lane, ...] = field(default_factory=lambda: (Lane(),) * LANES)
    base_slot: int = 0
    flow: int = 0
    bytes_received: int = 0
    bytes_onward: int = 0

    def pack(self) -> bytes:
        """Return the header's HEADER_BYTES bytes. Raises ValueError if a value does not fit its field."""
        if len(self.lanes) != LANES:
            raise ValueError(f"a slot header has {LANES} lanes, not {len(self.lanes)}")
        lowers = sum(1 << number for number, lane in enumerate(self.lanes) if lane.delta < 0)
        lanes = (
            _pack(LANE_FIELDS, (*lane[:_AMOUNT], abs(lane.delta), *lane[_AMOUNT + 1 :]))
            for lane in self.lanes
        )
        fixed = [lowers if spec.name == "lowers" else int(getattr(self, spec.name)) for spec in FIELDS]
        tail = [int(getattr(self, spec.name)) for spec in TAIL_FIELDS]
        return _pack(FIELDS, fixed) + b"".join(lanes) + _pack(TAIL_FIELDS, tail)

    @classmethod
    def unpack(cls, data: bytes) -> SlotHeader:
        """Read a header from the start of `data`. Raises ValueError if it is too short or not one."""
        if data and data[0] >> 4 != VERSION:
            raise ValueError(f"slot header has version {data[0] >> 4}, expected {VERSION}")
        if len(data) < HEADER_BYTES:
            raise ValueError(f"a slot header takes {HEADER_BYTES} bytes, got {len(data)}")
        fixed = int.from_bytes(data[:FIXED_BYTES], "big")
        tail = int.from_bytes(data[_TAIL_AT:HEADER_BYTES], "big")
        values = {name: fixed >> shift & mask for name, shift, mask in _PLACES}
        values |= {name: tail >> shift & mask for name, shift, mask in _TAIL_PLACES}
        kind, lowers = Kind(values.pop("kind")), values.pop("lowers")
        if values["first_lane"] >= LANES:
            raise ValueError(f"slot header begins with lane {values['first_lane']}, the last is {LANES - 1}")
        lanes = [_as_tuple(Lane, lane) for lane in _lanes(data[FIXED_BYTES:_TAIL_AT])]
        if lowers:
            for number, lane in enumerate(lanes):
                if lowers >> number & 1:
                    lanes[number] = lane._replace(delta=-lane.delta)
        header = object.__new__(cls)  # without a call per field: an agent reads one for each decision
        header.__dict__.update(values, kind=kind, lanes=tuple(lanes))
        return header

    def epoch_in(self, lane: int) -> int:
        """Return the epoch of the slot that `lane` holds."""
        return (self.epoch + (lane < self.first_lane)) % EPOCHS

    def slot_in(self, lane: int) -> int:
        """Return the slot that `lane` holds, by `base_slot`."""
        return self.base_slot + (lane - self.base_slot) % LANES


def lane_of(slot: int) -> int:
    """Return the lane in which slot `slot` travels, which is also its register in the switch."""
    return slot % LANES


def epoch_of(slot: int) -> int:
    """Return the epoch of slot `slot`, as headers and switches have it."""
    return slot // LANES % EPOCHS


def slot_near(slot: int, number: int) -> int:
    """Return the slot nearest to `slot` of which `number` is what is known: the number modulo SLOTS."""
    return slot + (number - slot + SLOTS // 2) % SLOTS - SLOTS // 2


def announcement(base_slot: int, deltas: Sequence[int]) -> SlotHeader:
    """Return a SCHEDULE that changes slot base_slot + i by deltas[i] rate units.

    Raises ValueError for more than LANES slots.
    """
    if len(deltas) > LANES:
        raise ValueError(f"{len(deltas)} slots announced, the horizon is {LANES}")
    lanes = [Lane()] * LANES
    for offset, delta in enumerate(deltas):
        lanes[lane_of(base_slot + offset)] = Lane(delta)
    return SlotHeader(
        epoch=epoch_of(base_slot), first_lane=lane_of(base_slot), base_slot=base_slot, lanes=tuple(lanes)
    )


def _lanes(data: bytes) -> Iterator[tuple[int, ...]]:
    if _LANE is not None:
        return _LANE.iter_unpack(data)
    numbers = (int.from_bytes(data[at : at + LANE_BYTES], "big") for at in range(0, len(data), LANE_BYTES))
    return (tuple(lane >> shift & mask for _, shift, mask in _LANE_PLACES) for lane in numbers)


def _pack(specs: Sequence[FieldSpec], values: Sequence[int]) -> bytes:
    number = bits = 0
    for spec, value in zip(specs, values, strict=True):
        if not 0 <= value < 1 << spec.bits:
            raise ValueError(f"{spec.name} = {value} does not fit {spec.bits} bits")
        number = number << spec.bits | value
        bits += spec.bits
    return number.to_bytes(bits // 8, "big")
