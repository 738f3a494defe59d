"""The packing of table keys, entries and action profiles, shared by compiler and datapath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from softswitch.compiler.layout import Member, Record, align, arguments, record
from softswitch.compiler.program import (
    Key,
    Profile,
    Table,
    Unsupported,
)

MOST_MASKS = 8192
NO_ACTION = 0xFFFFFFFF

Method = Literal["none", "exact", "lpm", "ternary", "range"]


@dataclass(frozen=True)
class TableLayout:
    """How a table's keys and entries are packed.

    `key` holds native integers (method exact, ternary, range: offsets in `record`), or big-endian bytes
    (method lpm: `record` offsets after the prefix length of 4 bytes). `words` is the key in 64-bit words.
    """

    index: int
    table: Table
    method: Method
    key: Record
    words: int
    entry_bytes: int  # head (action, slot), then the arguments
    masks: int  # room for distinct masks (ternary)
    slots: int  # room for entries

    @property
    def default_bytes(self) -> int:
        """Bytes of the default entry, which names an action even if the other entries name members."""
        return max([8, *(arguments(a).size for a in self.table.actions.values())])

    @property
    def ranges(self) -> tuple[int, ...]:
        """Indices of the range keys."""
        return tuple(i for i, k in enumerate(self.table.keys) if k.kind == "range")

    @property
    def row_words(self) -> int:
        """Words in one row of a mask list (ternary: priority, mask id, mask) or of a range table."""
        if self.method == "ternary":
            return 2 + self.words
        return 1 + 2 * self.words + 2 * len(self.ranges)

    @property
    def list_words(self) -> int:
        """Words in one half of the double buffer: the count, then the rows."""
        return 1 + self.row_words * (self.masks if self.method == "ternary" else self.slots)


def lpm_key(keys: Sequence[Key]) -> Record:
    """Return the layout of an LPM key: prefix length, then big-endian bytes with the LPM key last."""
    members: dict[int, Member] = {}
    at = 4
    for i in sorted(range(len(keys)), key=lambda i: keys[i].kind == "lpm"):
        size = (keys[i].bits + 7) // 8
        members[i] = Member(keys[i].name, at, keys[i].bits)
        at += size
    return Record(tuple(members[i] for i in range(len(keys))), at)


def method_of(table: Table) -> Method:
    kinds = [k.kind for k in table.keys]
    if not kinds:
        return "none"
    if "range" in kinds:
        return "range"
    if "ternary" in kinds or kinds.count("lpm") > 1:
        return "ternary"
    return "lpm" if "lpm" in kinds else "exact"


def table_layout(index: int, table: Table) -> TableLayout:
    method = method_of(table)
    fields = [(k.name, k.bits) for k in table.keys]
    key = lpm_key(table.keys) if method == "lpm" else record(fields, order=True)
    if method == "range" and any(k.kind == "range" and k.bits > 64 for k in table.keys):
        raise Unsupported(f"softswitch cannot run table {table.name}: a range key of more than 64 bits")
    if method == "lpm" and key.size - 4 > 256:
        raise Unsupported(f"softswitch cannot run table {table.name}: an LPM key of more than 256 bytes")
    if key.size > 512:
        raise Unsupported(f"softswitch cannot run table {table.name}: a key of {key.size} bytes")
    entry = (
        16
        if table.profile
        else max(arguments(a).size for a in table.actions.values())
        if table.actions
        else 8
    )
    if not table.profile:
        entry = max(entry, 8)
    size = max(table.size, len(table.entries))
    return TableLayout(index, table, method, key, align(key.size, 8) // 8, entry, min(size, MOST_MASKS), size)


@dataclass(frozen=True)
class ProfileLayout:
    """An action profile: members by slot (with spares, so that a change is one store), and groups of them."""

    index: int
    profile: Profile
    entry_bytes: int
    members: int
    spare: int
    groups: int
    pool: int  # member numbers of all groups
