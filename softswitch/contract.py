"""What the P4Runtime server needs of a datapath: the values that cross the border, and the interface.

Names are those of the BMv2 JSON (the fully qualified names of P4Info), values are integers, counters and
rates are in packets and bytes. The server checks everything it can against P4Info before it calls the
datapath, which may therefore assume entries that fit; `EntrainError` from it means that the kernel refused.

A group has distinct members. A packet's hash selects among them in the order of their slots, which are the
lowest that were free when the members were inserted: so BMv2 orders them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from machine.errors import EntrainError


@dataclass(frozen=True, slots=True)
class Exact:
    """A key that equals `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """A key whose first `prefix_len` bits are those of `value`; Lpm(0, 0) matches everything."""

    value: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """A key that equals `value` where `mask` has ones; also optional keys, whose mask is all ones or 0."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    """A key between `low` and `high`, both included."""

    low: int
    high: int


Match = Exact | Lpm | Ternary | Range


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with its arguments in the order of its parameters."""

    action: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the table's action profile."""

    id: int


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the table's action selector."""

    id: int


Action = ActionCall | Member | Group


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Two rates, three colours (RFC 2698): rates per second and bursts, in the meter's unit."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that the program itself brings (`entries`, `const entries`)."""

    handle: int
    match: tuple[Match, ...]
    priority: int
    action: ActionCall


class Full(EntrainError):
    """There is no room: for one more entry, member, group or mask, or for the program's state."""


DigestCallback = Callable[[str, tuple[int, ...]], None]


class Datapath(Protocol):
    """One loaded program. Methods raise EntrainError where the kernel refuses."""

    def add_port(self, port: int, ifindex: int, rate_mbps: float | None = None) -> None: ...
    def remove_port(self, port: int) -> None: ...
    def set_queue(self, port: int, rate_mbps: float, depth_packets: int) -> None: ...

    def initial_entries(self, table: str) -> Sequence[Entry]: ...
    def initial_default(self, table: str) -> ActionCall | None: ...
    def table_insert(self, table: str, match: tuple[Match, ...], priority: int, action: Action) -> int: ...
    def table_modify(self, table: str, handle: int, action: Action) -> None: ...
    def table_delete(self, table: str, handle: int) -> None: ...
    def table_set_default(self, table: str, action: ActionCall | None) -> None: ...
    def batch(self) -> AbstractContextManager[object]: ...

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]: ...
    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None: ...
    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None: ...

    def member_insert(self, profile: str, id_: int, action: ActionCall) -> None: ...
    def member_modify(self, profile: str, id_: int, action: ActionCall) -> None: ...
    def member_delete(self, profile: str, id_: int) -> None: ...
    def group_insert(self, profile: str, id_: int, members: tuple[int, ...]) -> None: ...
    def group_modify(self, profile: str, id_: int, members: tuple[int, ...]) -> None: ...
    def group_delete(self, profile: str, id_: int) -> None: ...

    def counter_read(self, name: str, index: int) -> tuple[int, int]: ...
    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None: ...
    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None: ...
    def register_read(self, name: str, index: int) -> int: ...
    def register_write(self, name: str, index: int, value: int) -> None: ...
    def register_read_all(self, name: str) -> Sequence[int]: ...

    def multicast_set(self, group: int, replicas: tuple[tuple[int, int], ...]) -> None: ...
    def multicast_delete(self, group: int) -> None: ...
    def clone_session_set(
        self, session: int, replicas: tuple[tuple[int, int], ...], packet_length: int
    ) -> None: ...
    def clone_session_delete(self, session: int) -> None: ...
    def value_set_write(self, name: str, members: Sequence[tuple[Match, ...]]) -> None: ...

    def digest_fd(self) -> int | None: ...
    def poll_digests(self, callback: DigestCallback) -> None: ...

    def close(self) -> None: ...
