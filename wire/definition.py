"""Checks the slot header's definition before anything is generated from it."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from scapy.packet import Packet

from machine.toml import Strict, check, matching, read_toml

WIDTHS = (4, *range(8, 65, 8))

_NEEDED: dict[str, dict[str, tuple[int, ...]]] = {
    "fields": {
        "version": (4,),
        "kind": (4,),
        "next_ethertype": (16,),
        "epoch": (16,),
        "lowers": (8, 16, 24, 32),
        "first_lane": (16,),
    },
    "lane": {"amount": (8, 16, 24, 32)},
    "tail": {"base_slot": (8, 16, 24, 32)},
}
"""By table, the fields that the generated code reads itself, and the widths that it can read."""

_P4 = """abstract action bit bool const control default else enum error exit extern false header in inout if
    header_union int match_kind out package parser return select string struct switch table this transition
    true tuple typedef varbit value_set void"""
_C = """auto break case char continue do double float for goto inline long register restrict short signed
    sizeof static union unsigned volatile while"""
_LUA = "and elseif end function local nil not or repeat then until"
_OURS = "lanes slot delta left epoch_in slot_in pack unpack count index"
RESERVED = {*_P4.split(), *_C.split(), *_LUA.split(), *_OURS.split(), *keyword.kwlist, *dir(Packet)}
"""Names that a field cannot have in P4, C, Lua, Python, our classes or Scapy's."""


class FieldTable(Strict):
    """A field: see `wire.slot_header.FieldSpec`."""

    name: Annotated[
        str, matching("[a-z][a-z0-9_]*", "must be a letter, then letters, digits and _, in lower case")
    ]
    bits: int
    doc: str
    start: int = 0

    @model_validator(mode="after")
    def _can_be_generated(self) -> Self:
        if self.name in RESERVED:
            raise ValueError(f"{self.name}: is a word of P4, C, Lua, Python or Scapy; choose another name")
        if self.bits not in WIDTHS:
            widths = ", ".join(map(str, WIDTHS[1:-1]))
            raise ValueError(
                f"{self.name}: bits is {self.bits}; give {widths} or {WIDTHS[-1]}, or 4 to each of a pair"
            )
        if not 0 <= self.start < 1 << self.bits:
            raise ValueError(f"{self.name}: start is {self.start}; give what fits {self.bits} bits")
        if not self.doc.isprintable() or "*/" in self.doc or self.doc.endswith("\\"):
            raise ValueError(
                f"{self.name}: doc becomes a comment of one line; leave out controls, */ and a last \\"
            )
        return self


Nibble = Annotated[int, Field(ge=0, le=15)]


class KindTable(Strict):
    """The `[kinds]` table."""

    schedule: Nibble
    feedback: Nibble
    query: Nibble


class Definition(Strict):
    """The whole file."""

    ethertype: Annotated[int, Field(ge=0x600, le=0xFFFF)]
    lanes: Annotated[int, Field(ge=1)]
    rate_unit_mbps: Annotated[int, Field(ge=1)]
    headroom_offset: Annotated[int, Field(ge=0, le=2**32 - 1)]
    kinds: KindTable
    fields: Annotated[tuple[FieldTable, ...], Field(strict=False)]
    lane: Annotated[tuple[FieldTable, ...], Field(strict=False)]
    tail: Annotated[tuple[FieldTable, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        tables = {"fields": self.fields, "lane": self.lane, "tail": self.tail}
        for table, needed in _NEEDED.items():
            bits = {field.name: field.bits for field in tables[table]}
            for name, widths in needed.items():
                if bits.get(name) not in widths:
                    given = f"has {bits[name]} bits" if name in bits else "is missing"
                    allowed = " or ".join(map(str, widths))
                    raise ValueError(f"[[{table}]]: {name} {given}; programs read one of {allowed} bits")
        if [field.name for field in self.fields[:2]] != ["version", "kind"]:
            raise ValueError(
                "[[fields]]: version and kind come first, because they tell what follows; move them"
            )
        header, lane = _members("fields", self.fields), _members("lane", self.lane)
        for members in (header + _members("tail", self.tail), lane):
            if twice := next((name for name, count in Counter(members).items() if count > 1), None):
                raise ValueError(f"{twice}: two fields have this name, or a pair does in C; rename one")
        signs = next(field for field in self.fields if field.name == "lowers")
        if self.lanes > signs.bits:
            raise ValueError(f"lanes is {self.lanes}; lowers has {signs.bits} bits, one for each; widen it")
        values = list(self.kinds.model_dump().values())
        if len({*values}) < len(values) or self.fields[1].start not in values:
            raise ValueError("kind: its start must be one of [kinds], and these must differ")
        return self


def _members(table: str, fields: Sequence[FieldTable]) -> list[str]:
    """Return the names of the fields and of the C members. Raises ValueError for four bits without others."""
    names = [field.name for field in fields]
    rest = iter(fields)
    for field in rest:
        if field.bits == 4:
            second = next(rest, None)
            if second is None or second.bits != 4:
                raise ValueError(f"[[{table}]]: {field.name} has 4 bits; the field after it must have 4, too")
            names.append(f"{field.name}_{second.name}")
    return names


def check_definition(path: Path) -> None:
    """Raise BadInput, naming file, field and remedy, unless all languages can have the header."""
    check(Definition, read_toml(path), str(path))
