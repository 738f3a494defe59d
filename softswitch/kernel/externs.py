"""Access to a loaded program's counters, meters, registers, replication groups and value sets.

Counters, meters and registers are in memory shared with the program: reading them needs no system call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ebpf import Map, Object
from machine.errors import EntrainError
from softswitch.compiler.build import Code
from softswitch.compiler.layout import limbs, size_of
from softswitch.compiler.program import Counter, Meter, Program
from softswitch.contract import Exact, Full, Match, MeterConfig
from softswitch.kernel.shared import Kind, Shared

_CLONE_SESSION = 1 << 31  # clone sessions share the map of multicast groups
_MOST_REPLICAS = 128
_KINDS: dict[int, Kind] = {1: "B", 2: "H", 4: "I"}


class Externs:
    """The part of a datapath other than ports, tables and packets."""

    program: Program
    code: Code
    shared: Shared
    object: Object
    _direct_of: dict[str, tuple[str | None, str | None]]  # counter and meter, by table

    # --- counters, meters, registers ---

    def _direct(self, table: str) -> tuple[str | None, str | None]:
        if table not in self._direct_of:
            counter = next((c.name for c in self.program.counters.values() if c.table == table), None)
            meter = next((m.name for m in self.program.meters.values() if m.table == table), None)
            self._direct_of[table] = counter, meter
        return self._direct_of[table]

    def _reset_direct(self, table: str, handle: int) -> None:
        counter, meter = self._direct(table)
        if counter is not None:
            self._counter_store(counter, handle, 0, 0)
        if meter is not None:
            self._meter_store(meter, handle, None)

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        counter, _ = self._direct(table)
        if counter is None:
            raise EntrainError(f"table {table} has no direct counter")
        return self._counter_load(counter, handle)

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        counter, _ = self._direct(table)
        if counter is None:
            raise EntrainError(f"table {table} has no direct counter")
        self._counter_store(counter, handle, packets, bytes_)

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        _, meter = self._direct(table)
        if meter is None:
            raise EntrainError(f"table {table} has no direct meter")
        self._meter_store(meter, handle, config)

    def _rows(self, declared: Counter | Meter) -> int:
        return max(1, declared.size if declared.table is None else self.program.tables[declared.table].size)

    def _counter_view(self, name: str, index: int) -> tuple[memoryview, list[int]]:
        if name not in self.program.counters:
            raise EntrainError(f"the program has no counter {name}")
        rows = self._rows(self.program.counters[name])
        if not 0 <= index < rows:
            raise EntrainError(f"counter {name} has no cell {index}: its size is {rows}")
        view = self.shared.view(f"c{self.code.actions.counters[name]}")
        return view, list(range(2 * index, len(view), 2 * rows))

    def _counter_load(self, name: str, index: int) -> tuple[int, int]:
        view, places = self._counter_view(name, index)
        return sum(view[p] for p in places), sum(view[p + 1] for p in places)

    def _counter_store(self, name: str, index: int, packets: int, bytes_: int) -> None:
        view, places = self._counter_view(name, index)
        for place in places:
            view[place], view[place + 1] = packets, bytes_
            packets = bytes_ = 0

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """Return the packets and bytes that a cell has counted."""
        return self._counter_load(name, index)

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        self._counter_store(name, index, packets, bytes_)

    def _meter_store(self, name: str, index: int, config: MeterConfig | None) -> None:
        if name not in self.program.meters:
            raise EntrainError(f"the program has no meter {name}")
        rows = self._rows(self.program.meters[name])
        if not 0 <= index < rows:
            raise EntrainError(f"meter {name} has no cell {index}: its size is {rows}")
        view = self.shared.view(f"e{self.code.actions.meters[name]}")
        at = 8 * index
        view[at] = 0
        if config is None:
            return
        if config.cir > config.pir:
            raise EntrainError(
                f"meter {name}: the committed rate {config.cir} exceeds the peak rate {config.pir}"
            )
        for i, (rate, burst) in enumerate(((config.pir, config.pburst), (config.cir, config.cburst))):
            view[at + 1 + 3 * i], view[at + 2 + 3 * i], view[at + 3 + 3 * i] = rate, burst, burst
        view[at + 7] = 0
        view[at] = 1

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one meter. None marks every packet green."""
        self._meter_store(name, index, config)

    def _register(self, name: str, index: int) -> tuple[memoryview, int]:
        if name not in self.program.registers:
            raise EntrainError(f"the program has no register {name}")
        declared = self.program.registers[name]
        if not 0 <= index < declared.size:
            raise EntrainError(f"register {name} has no cell {index}: its size is {declared.size}")
        kind = _KINDS.get(size_of(declared.bits), "Q")
        return self.shared.view(f"r{self.code.actions.registers[name]}", kind), max(1, limbs(declared.bits))

    def register_read(self, name: str, index: int) -> int:
        view, count = self._register(name, index)
        return sum(view[index * count + i] << (64 * i) for i in range(count))

    def register_write(self, name: str, index: int, value: int) -> None:
        view, count = self._register(name, index)
        value &= (1 << self.program.registers[name].bits) - 1
        for i in range(count):
            view[index * count + i] = (value >> (64 * i)) & (2**64 - 1)

    def register_read_all(self, name: str) -> Sequence[int]:
        view, count = self._register(name, 0)
        size = self.program.registers[name].size
        if count == 1:
            return view.tolist()[:size]
        return [sum(view[i * count + j] << (64 * j) for j in range(count)) for i in range(size)]

    # --- replication ---

    def _replicas(self) -> Map | None:
        return self.object.maps.get("replication")

    def _set_replicas(self, id_: int, replicas: tuple[tuple[int, int], ...], length: int) -> None:
        if len(replicas) > _MOST_REPLICAS:
            raise Full(f"a group has at most {_MOST_REPLICAS} replicas, not {len(replicas)}")
        target = self._replicas()
        if target is None:
            return  # the program neither multicasts nor clones packets
        raw = struct.pack("=II", len(replicas), length) + b"".join(struct.pack("=II", *r) for r in replicas)
        target.update(struct.pack("=I", id_), raw.ljust(8 + 8 * _MOST_REPLICAS, b"\0"))

    def _delete_replicas(self, id_: int) -> None:
        target = self._replicas()
        if target is not None:
            target.pop(struct.pack("=I", id_), None)

    def multicast_set(self, group: int, replicas: tuple[tuple[int, int], ...]) -> None:
        """Set a multicast group's replicas: port and replica id of each."""
        self._set_replicas(group, replicas, 0)

    def multicast_delete(self, group: int) -> None:
        self._delete_replicas(group)

    def clone_session_set(
        self, session: int, replicas: tuple[tuple[int, int], ...], packet_length: int
    ) -> None:
        """Set a clone session. Clones are cut to `packet_length` bytes; 0 leaves them whole."""
        self._set_replicas(_CLONE_SESSION | session, replicas, packet_length)

    def clone_session_delete(self, session: int) -> None:
        self._delete_replicas(_CLONE_SESSION | session)

    def value_set_write(self, name: str, members: Sequence[tuple[Match, ...]]) -> None:
        """Set the members of a parser value set."""
        if name not in self.program.value_sets:
            raise EntrainError(f"the program has no value set {name}")
        declared = self.program.value_sets[name]
        if len(members) > declared.size:
            raise EntrainError(f"value set {name} holds at most {declared.size} members, not {len(members)}")
        parts = len(self.code.value_sets.get(name, (0,)))
        view = self.shared.view(f"v{list(self.program.value_sets).index(name)}")
        half = 1 - (view[0] & 1)
        at = 1 + half * (1 + declared.size * parts)
        for i, member in enumerate(members):
            if len(member) != parts or not all(isinstance(m, Exact) for m in member):
                raise EntrainError(f"each member of value set {name} needs {parts} exact values")
            for j, m in enumerate(member):
                assert isinstance(m, Exact)
                view[at + 1 + i * parts + j] = m.value
        view[at] = len(members)
        view[0] = half
