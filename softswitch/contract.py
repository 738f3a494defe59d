"""The contract between the P4Runtime server and the datapath: an interface, and the values that cross it.

Tables, actions, counters and so on go by their names in the BMv2 JSON, which are the fully qualified names
of P4Info. Values, keys and arguments are unsigned integers.

The server checks whatever P4Info allows it to check before it calls the datapath.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from machine.errors import EntrainError


@dataclass(frozen=True, slots=True)
class Exact:
    """Match a key that equals `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """Match a key whose first `prefix_len` bits equal those of `value`. Lpm(0, 0) matches every key."""

    value: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """Match a key that equals `value` in the bits set in `mask`.

    An optional key has a mask of all ones or of 0.
    """

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    """Match a key from `low` to `high`, both inclusive."""

    low: int
    high: int


Match = Exact | Lpm | Ternary | Range


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action and its arguments, in the order of its parameters."""

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
    """A two-rate three-colour meter (RFC 2698).

    The meter's declaration sets the unit: bytes or packets. Rates are in units per second, bursts in units.
    """

    cir: int  # committed rate
    cburst: int
    pir: int  # peak rate
    pburst: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry that the program declares (`entries`, `const entries`)."""

    handle: int
    match: tuple[Match, ...]
    priority: int
    action: ActionCall


@dataclass(frozen=True)
class Queue:
    """A port's virtual queue: what would wait now, and what was dropped since loading because it was full.

    `dropped_packets` counts an offloaded packet once, `waiting_packets` as its segments.
    """

    waiting_packets: int
    waiting_bytes: int
    dropped_packets: int
    dropped_bytes: int


class Full(EntrainError):
    """A table, profile, group or mask list is full, or the program's state does not fit in memory."""


DigestCallback = Callable[[str, tuple[int, ...]], None]
"""Receives one digest message: the name of its list, and its fields."""


class Datapath(Protocol):
    """One loaded program.

    Every method raises EntrainError if the kernel refuses, or if the program has no object of that name or
    index. Full names what has no room left.
    """

    # --- ports ---

    def add_port(self, port: int, ifindex: int, rate_mbps: float | None = None) -> None:
        """Receive from and send to interface `ifindex` of this network namespace as `port`.

        `rate_mbps` is the rate of the port's virtual queue in Mbit/s; None adds no queue. Raises EntrainError
        if the port number is out of range or in use.
        """

    def set_queued(self, port: int, queued: bool) -> None:
        """Set whether packets may wait at the port's interface, as before a queueing discipline.

        They may when the port has just been added. What may wait is taken from its sender's socket, which a
        queue in a network does not hold back. That takes a copy of the packet.
        """

    def set_mtu(self, port: int, mtu: int) -> None:
        """Set the MTU of the port's link, in bytes. Until then, the port sends frames of every length."""

    def too_long(self) -> Mapping[int, int]:
        """Return, by port, how many packets were dropped since loading because they exceed the link's MTU.

        An offloaded packet counts once.
        """

    def remove_port(self, port: int) -> None:
        """Detach from the port's interface. Raises EntrainError if there is no such port."""

    def set_queue(self, port: int, rate_mbps: float, depth_packets: int) -> None:
        """Set the port's virtual queue, and empty it.

        A rate of 0 Mbit/s removes the queue. A depth of 0 packets sets no limit.
        """

    def queues(self) -> Mapping[int, Queue]:
        """Return the virtual queues, by port."""

    # --- tables ---

    def initial_entries(self, table: str) -> Sequence[Entry]:
        """Return the entries that the program declares. They are in the table after loading."""

    def initial_default(self, table: str) -> ActionCall | None:
        """Return the default action that the program declares, or None."""

    def table_insert(self, table: str, match: tuple[Match, ...], priority: int, action: Action) -> int:
        """Add an entry and return its handle, the lowest free number.

        `match` has one value per key, in the order of the keys. The larger `priority` wins; pass 0 for tables
        without priorities. The entry's direct counter starts at 0, its direct meter without a configuration.
        Raises Full if the table, or its list of distinct masks, is full.
        """

    def table_modify(self, table: str, handle: int, action: Action) -> None:
        """Replace an entry's action. Its direct counter and meter stay as they are."""

    def table_delete(self, table: str, handle: int) -> None:
        """Delete an entry. Its handle becomes free."""

    def table_set_default(self, table: str, action: ActionCall | None) -> None:
        """Set the default action; None restores the program's own.

        Raises EntrainError if the default action is constant and `action` differs from it.
        """

    def batch(self) -> AbstractContextManager[object]:
        """Return a context in which changes may be deferred. They all apply by its end."""

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        """Return the packets and bytes that an entry has counted."""

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        """Set what an entry has counted."""

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        """Configure an entry's meter, with full buckets; None marks every packet green.

        Raises EntrainError if the committed rate exceeds the peak rate.
        """

    # --- action profiles ---
    #
    # The members of a group are distinct. A packet's hash selects among them in the order of their slots. A
    # new member takes the lowest free slot, as in BMv2.

    def member_insert(self, profile: str, id_: int, action: ActionCall) -> None:
        """Add a member. Raises EntrainError if the id is in use, Full if the profile is full."""

    def member_modify(self, profile: str, id_: int, action: ActionCall) -> None:
        """Replace a member's action, for all groups and entries that refer to it."""

    def member_delete(self, profile: str, id_: int) -> None:
        """Delete a member. Raises EntrainError if a group contains it."""

    def group_insert(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        """Add a group of member ids.

        Raises EntrainError if the id is in use, Full if there is no room for the group or its members.
        """

    def group_modify(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        """Replace a group's members. No packet sees a mixture of old and new. Raises Full as above."""

    def group_delete(self, profile: str, id_: int) -> None:
        """Delete a group. Its members stay."""

    # --- counters, meters, registers ---
    #
    # `index` counts from 0.

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """Return the packets and bytes that a cell has counted."""

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        """Set what a cell has counted."""

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure a meter, with full buckets; None marks every packet green.

        Raises EntrainError if the committed rate exceeds the peak rate.
        """

    def register_read(self, name: str, index: int) -> int:
        """Return a cell."""

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set a cell to `value`. Bits beyond the register's width are dropped."""

    def register_read_all(self, name: str) -> Sequence[int]:
        """Return all cells, by index. Cells may change while this reads."""

    # --- replication and value sets ---
    #
    # `replicas` has a port and a replica id per copy.

    def multicast_set(self, group: int, replicas: tuple[tuple[int, int], ...]) -> None:
        """Create or replace a multicast group. Raises Full if it has too many replicas."""

    def multicast_delete(self, group: int) -> None:
        """Delete a multicast group."""

    def clone_session_set(
        self, session: int, replicas: tuple[tuple[int, int], ...], packet_length: int
    ) -> None:
        """Create or replace a clone session. Raises Full if it has too many replicas.

        Clones are cut to `packet_length` bytes; 0 leaves them whole.
        """

    def clone_session_delete(self, session: int) -> None:
        """Delete a clone session."""

    def value_set_write(self, name: str, members: Sequence[tuple[Match, ...]]) -> None:
        """Replace the members of a parser value set: one value per field each.

        Raises EntrainError if there are more members than the set holds, or if one is not exact.
        """

    # --- digests ---

    def digest_fd(self) -> int | None:
        """Return a descriptor that is readable while digests wait; None if the program sends none."""

    def poll_digests(self, callback: DigestCallback) -> None:
        """Pass all waiting digests to `callback`, in the order of their arrival."""

    def close(self) -> None:
        """Detach from all ports and free the program. Call nothing else afterwards."""
