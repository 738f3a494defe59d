"""Store table entries in BPF maps and shared memory: the user-space half of `compiler.codegen.tables`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ebpf import Map
from machine.errors import EntrainError
from softswitch.compiler.layout import Record
from softswitch.compiler.table_layout import TableLayout
from softswitch.contract import Exact, Full, Lpm, Match, Range, Ternary
from softswitch.kernel.shared import Shared, Slots, words


@dataclass
class Stored:
    """One entry. `entry` is its packed form without the handle, `place` its row in shared memory."""

    match: tuple[Match, ...]
    priority: int
    entry: bytes
    place: int = -1


def full(bits: int) -> int:
    return (1 << bits) - 1


def value_and_mask(match: Match, bits: int) -> tuple[int, int]:
    """Return a match as value and mask. A range has neither, and gives (0, 0)."""
    match match:
        case Exact(value):
            return value, full(bits)
        case Lpm(value, prefix_len):
            mask = full(bits) & ~full(bits - prefix_len)
            return value & mask, mask
        case Ternary(value, mask):
            return value & mask, mask
    return 0, 0


class TableStore(ABC):
    """The entries of one table. A new entry gets the lowest free handle: ties break as in BMv2."""

    def __init__(self, layout: TableLayout, shared: Shared) -> None:
        self.layout = layout
        self.shared = shared
        self.entries: dict[int, Stored] = {}
        self.handles = Slots(layout.slots)

    @property
    def name(self) -> str:
        return self.layout.table.name

    def insert(self, match: tuple[Match, ...], priority: int, entry: bytes) -> int:
        """Add an entry and return its handle. Raises Full if the table is full."""
        if len(match) != len(self.layout.table.keys):
            raise EntrainError(f"table {self.name} has {len(self.layout.table.keys)} keys, not {len(match)}")
        handle = self.handles.take()
        if handle is None:
            raise Full(f"table {self.name} is full: its size is {self.layout.slots}")
        stored = Stored(match, priority, entry)
        try:
            self._add(handle, stored)
        except BaseException:
            self.handles.give(handle)
            raise
        self.entries[handle] = stored
        return handle

    def modify(self, handle: int, entry: bytes) -> None:
        stored = self._stored(handle)
        self._change(handle, stored, entry)
        stored.entry = entry

    def delete(self, handle: int) -> None:
        stored = self._stored(handle)
        del self.entries[handle]
        self._remove(handle, stored)
        self.handles.give(handle)

    def flush(self) -> None:  # noqa: B027 (most stores have nothing to do)
        """Publish the changes that a batch has deferred."""

    def _stored(self, handle: int) -> Stored:
        if handle not in self.entries:
            raise EntrainError(f"table {self.name} has no entry with handle {handle}")
        return self.entries[handle]

    @staticmethod
    def packed(handle: int, stored: Stored) -> bytes:
        """Return the entry as the program reads it: action, handle, arguments."""
        return stored.entry[:4] + handle.to_bytes(4, "little") + stored.entry[8:]

    @abstractmethod
    def _add(self, handle: int, stored: Stored) -> None: ...

    @abstractmethod
    def _change(self, handle: int, stored: Stored, entry: bytes) -> None: ...

    @abstractmethod
    def _remove(self, handle: int, stored: Stored) -> None: ...


class KeylessStore(TableStore):
    """A table without keys, which has only a default action."""

    def _add(self, handle: int, stored: Stored) -> None:
        raise EntrainError(f"table {self.name} has no keys: it has only a default action")

    def _change(self, handle: int, stored: Stored, entry: bytes) -> None:
        raise AssertionError

    def _remove(self, handle: int, stored: Stored) -> None:
        raise AssertionError


class MapStore(TableStore):
    """An exact or LPM table. Each entry is a value of the map."""

    def __init__(self, layout: TableLayout, shared: Shared, entries: Map) -> None:
        super().__init__(layout, shared)
        self.map = entries

    def key(self, match: tuple[Match, ...]) -> bytes:
        pairs = [value_and_mask(m, k.bits) for m, k in zip(match, self.layout.table.keys, strict=True)]
        if self.layout.method == "exact":
            return self.layout.key.pack(tuple(value for value, _ in pairs))
        raw = bytearray(self.layout.key.size)
        prefix = 0
        for m, key, member, (value, _) in zip(
            match, self.layout.table.keys, self.layout.key.members, pairs, strict=True
        ):
            size = (key.bits + 7) // 8
            if key.kind == "lpm":
                value <<= 8 * size - key.bits
                prefix = 8 * (member.offset - 4) + (m.prefix_len if isinstance(m, Lpm) else key.bits)
            raw[member.offset : member.offset + size] = value.to_bytes(size, "big")
        raw[:4] = prefix.to_bytes(4, "little")
        return bytes(raw)

    def _add(self, handle: int, stored: Stored) -> None:
        self.map.update(self.key(stored.match), self.packed(handle, stored))

    def _change(self, handle: int, stored: Stored, entry: bytes) -> None:
        changed = Stored(stored.match, stored.priority, entry)
        self.map.update(self.key(stored.match), self.packed(handle, changed))

    def _remove(self, handle: int, stored: Stored) -> None:
        del self.map[self.key(stored.match)]


class OrderedStore(TableStore):
    """A ternary or range table: entries in shared memory, found through a double-buffered list."""

    def __init__(self, layout: TableLayout, shared: Shared) -> None:
        super().__init__(layout, shared)
        self.places = Slots(layout.slots + 1)  # one spare, so that a change takes effect at once
        self.rows = shared.view(f"t{layout.index}")
        self.order = shared.view(f"o{layout.index}")
        self.deferred = False
        self.stale = False

    def rank(self, handle: int, stored: Stored) -> int:
        """Return an entry's rank: the largest wins. Ties of priority go to the lower handle, as in BMv2."""
        return (stored.priority + 1) << 32 | (0xFFFFFFFF - handle)

    def _place(self, handle: int, stored: Stored) -> int:
        place = self.places.take()
        assert place is not None
        size = self.layout.entry_bytes // 8
        self.rows[place * size : (place + 1) * size] = memoryview(
            self.packed(handle, stored).ljust(8 * size, b"\0")
        ).cast("Q")
        return place

    def words_of(self, match: Sequence[Match]) -> tuple[list[int], list[int]]:
        """Return value and mask of the whole key, in 64-bit words."""
        pairs = [value_and_mask(m, k.bits) for m, k in zip(match, self.layout.table.keys, strict=True)]
        return self._words(self.layout.key, [p[0] for p in pairs]), self._words(
            self.layout.key, [p[1] for p in pairs]
        )

    def _words(self, record: Record, values: list[int]) -> list[int]:
        return words(record.pack(tuple(values)).ljust(8 * self.layout.words, b"\0"))

    def _publish(self, rows: list[list[int]]) -> None:
        """Write the list that is not in use, then switch to it."""
        half = 1 - (self.order[0] & 1)
        at = 1 + half * self.layout.list_words
        flat = [word for row in rows for word in row]
        self.order[at] = 0
        if flat:
            raw = b"".join(w.to_bytes(8, "little") for w in flat)
            self.order[at + 1 : at + 1 + len(flat)] = memoryview(raw).cast("Q")
        self.order[at] = len(rows)
        self.order[0] = half

    def _publish_soon(self) -> None:
        self.stale = True
        if not self.deferred:
            self.flush()


class RangeStore(OrderedStore):
    """A range table: rows in order of priority."""

    def _row(self, stored: Stored) -> list[int]:
        values, masks = self.words_of(stored.match)
        bounds: list[int] = []
        for i in self.layout.ranges:
            m = stored.match[i]
            assert isinstance(m, Range)
            bounds += [m.low, m.high]
        return [stored.place, *values, *masks, *bounds]

    def flush(self) -> None:
        if self.stale:
            ranked = sorted(self.entries.items(), key=lambda item: -self.rank(*item))
            self._publish([self._row(stored) for _, stored in ranked])
            self.stale = False

    def _add(self, handle: int, stored: Stored) -> None:
        stored.place = self._place(handle, stored)
        self.entries[handle] = stored
        self._publish_soon()

    def _change(self, handle: int, stored: Stored, entry: bytes) -> None:
        old = stored.place
        stored.entry = entry
        stored.place = self._place(handle, stored)
        self._publish_soon()
        self.places.give(old)

    def _remove(self, handle: int, stored: Stored) -> None:
        self._publish_soon()
        self.places.give(stored.place)


class TernaryStore(OrderedStore):
    """A ternary table, by tuple-space search.

    Of several entries with the same mask and value, only the best is in the map.
    """

    def __init__(self, layout: TableLayout, shared: Shared, entries: Map) -> None:
        super().__init__(layout, shared)
        self.map = entries
        self.mask_ids = Slots(layout.masks)
        self.masks: dict[tuple[int, ...], int] = {}
        self.buckets: dict[bytes, list[int]] = {}  # map key -> handles
        self.ranks: dict[tuple[int, ...], dict[int, int]] = {}  # mask -> handle -> rank
        self.best: dict[tuple[int, ...], int] = {}  # mask -> best rank

    def _bucket(self, stored: Stored) -> tuple[tuple[int, ...], bytes]:
        values, masks = self.words_of(stored.match)
        mask = tuple(masks)
        if mask not in self.masks:
            number = self.mask_ids.take()
            if number is None:
                raise Full(f"table {self.name} has too many distinct masks (at most {self.layout.masks})")
            self.masks[mask] = number
            self.ranks[mask] = {}
        key = b"".join(w.to_bytes(8, "little") for w in (self.masks[mask], *values))
        return mask, key

    def _show_best(self, key: bytes) -> None:
        handles = self.buckets.get(key)
        if not handles:
            self.buckets.pop(key, None)
            self.map.pop(key, None)
            return
        best = max(handles, key=lambda h: self.rank(h, self.entries[h]))
        value = self.rank(best, self.entries[best]).to_bytes(8, "little")
        self.map.update(key, value + self.entries[best].place.to_bytes(8, "little"))

    def flush(self) -> None:
        if self.stale:
            best = sorted(((rank, mask) for mask, rank in self.best.items() if rank), reverse=True)
            self._publish([[rank, self.masks[mask], *mask] for rank, mask in best])
            self.stale = False
            for mask in [m for m, r in self.ranks.items() if not r]:
                self.mask_ids.give(self.masks.pop(mask))
                del self.ranks[mask]
                self.best.pop(mask, None)

    def _add(self, handle: int, stored: Stored) -> None:
        mask, key = self._bucket(stored)
        stored.place = self._place(handle, stored)
        self.entries[handle] = stored
        self.buckets.setdefault(key, []).append(handle)
        self.ranks[mask][handle] = rank = self.rank(handle, stored)
        self._show_best(key)
        if rank > self.best.get(mask, 0):
            self.best[mask] = rank
            self._publish_soon()

    def _change(self, handle: int, stored: Stored, entry: bytes) -> None:
        _, key = self._bucket(stored)
        old = stored.place
        stored.entry = entry
        stored.place = self._place(handle, stored)
        self._show_best(key)
        self.places.give(old)

    def _remove(self, handle: int, stored: Stored) -> None:
        mask, key = self._bucket(stored)
        self.buckets[key].remove(handle)
        gone = self.ranks[mask].pop(handle)
        self._show_best(key)
        if gone == self.best[mask]:
            self.best[mask] = max(self.ranks[mask].values(), default=0)
            self._publish_soon()
        self.places.give(stored.place)


def store(layout: TableLayout, shared: Shared, entries: Map | None) -> TableStore:
    """Return the store for a table's method."""
    if layout.method == "none":
        return KeylessStore(layout, shared)
    if layout.method == "range":
        return RangeStore(layout, shared)
    assert entries is not None
    return (
        TernaryStore(layout, shared, entries)
        if layout.method == "ternary"
        else MapStore(layout, shared, entries)
    )
