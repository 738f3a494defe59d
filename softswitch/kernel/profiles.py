"""Members and groups of action profiles, in the memory shared with the program."""

from __future__ import annotations

from machine.errors import EntrainError
from softswitch.compiler.table_layout import ProfileLayout
from softswitch.contract import Full
from softswitch.kernel.shared import Shared, Slots


class ProfileStore:
    """One action profile. The program refers to members and groups by slot; new ones take the lowest free."""

    def __init__(self, layout: ProfileLayout, shared: Shared) -> None:
        self.layout = layout
        index = layout.index
        self.place_of = shared.view(f"n{index}", "I")
        self.entries = shared.view(f"b{index}")
        self.members: dict[int, int] = {}
        self.member_slots = Slots(layout.members)
        self.places = Slots(layout.members + layout.spare)
        self.used: dict[int, int] = {}  # member slot -> place
        self.groups: dict[int, int] = {}
        self.group_slots = Slots(layout.groups)
        self.group_members: dict[int, tuple[int, ...]] = {}
        if layout.profile.algorithm is not None:
            self.lists = shared.view(f"g{index}")
            self.pool = shared.view(f"l{index}", "I")
        self.extents: dict[int, tuple[int, int]] = {}  # group slot -> start, length in the pool

    @property
    def name(self) -> str:
        return self.layout.profile.name

    def _place(self, entry: bytes) -> int:
        place = self.places.take()
        if place is None:
            raise Full(f"action profile {self.name} is full: its size is {self.layout.members}")
        size = self.layout.entry_bytes // 8
        raw = entry.ljust(self.layout.entry_bytes, b"\0")
        self.entries[place * size : (place + 1) * size] = memoryview(raw).cast("Q")
        return place

    def insert(self, member: int, entry: bytes) -> None:
        if member in self.members:
            raise EntrainError(f"action profile {self.name} already has member {member}")
        slot = self.member_slots.take()
        if slot is None:
            raise Full(f"action profile {self.name} is full: its size is {self.layout.members}")
        self.used[slot] = self.place_of[slot] = self._place(entry)
        self.members[member] = slot

    def modify(self, member: int, entry: bytes) -> None:
        slot = self.member(member)
        old = self.used[slot]
        self.used[slot] = self.place_of[slot] = self._place(entry)
        self.places.give(old)

    def delete(self, member: int) -> None:
        slot = self.member(member)
        if any(member in members for members in self.group_members.values()):
            raise EntrainError(f"member {member} of action profile {self.name} is in a group")
        del self.members[member]
        self.places.give(self.used.pop(slot))
        self.member_slots.give(slot)

    def member(self, member: int) -> int:
        """Return the slot of a member."""
        if member not in self.members:
            raise EntrainError(f"action profile {self.name} has no member {member}")
        return self.members[member]

    def group(self, group: int) -> int:
        """Return the slot of a group."""
        if group not in self.groups:
            raise EntrainError(f"action profile {self.name} has no group {group}")
        return self.groups[group]

    def group_insert(self, group: int, members: tuple[int, ...]) -> None:
        if group in self.groups:
            raise EntrainError(f"action profile {self.name} already has group {group}")
        slot = self.group_slots.take()
        if slot is None:
            raise Full(f"action profile {self.name} has no room for more groups")
        try:
            self._set(slot, members)
        except BaseException:
            self.group_slots.give(slot)
            raise
        self.groups[group] = slot
        self.group_members[group] = members

    def group_modify(self, group: int, members: tuple[int, ...]) -> None:
        self._set(self.group(group), members)
        self.group_members[group] = members

    def group_delete(self, group: int) -> None:
        slot = self.group(group)
        self.lists[slot] = 0
        self.extents.pop(slot, None)
        del self.groups[group], self.group_members[group]
        self.group_slots.give(slot)

    def _set(self, slot: int, members: tuple[int, ...]) -> None:
        """Write the members to unused memory, then switch the group to them with one store."""
        # BMv2 orders the members by handle, not by when they were added.
        slots = sorted(self.member(m) for m in members)
        start = self._room(len(slots))
        for i, member in enumerate(slots):
            self.pool[start + i] = member
        self.lists[slot] = start << 32 | len(slots)
        self.extents[slot] = (start, len(slots))

    def _room(self, length: int) -> int:
        """Return the start of the first gap in the pool that is long enough."""
        at = 0
        for start, used in sorted(self.extents.values()):
            if start - at >= length:
                return at
            at = max(at, start + used)
        if at + length > self.layout.pool:
            raise Full(f"the groups of action profile {self.name} together have too many members")
        return at
