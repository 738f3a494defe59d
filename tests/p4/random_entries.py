"""Random control-plane state for any program, made from its P4Info alone.

Keys and packet fields draw from the same small pool of values per width, so that entries are hit often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from finsy.proto import p4i, p4r

from tests.p4.targets import CPU_PORT, PORTS

DROP_PORT = 511
PORT_WIDTH = 9
_PRIORITISED = (p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL)


@cache
def pool(width: int) -> tuple[int, ...]:
    """The values that entries and packets of all seeds share: the corners and a few others."""
    if width == PORT_WIDTH:
        return (*PORTS, *PORTS, CPU_PORT, DROP_PORT, 77)
    rng = random.Random(width)
    full = (1 << width) - 1
    corners = {0, 1, full, full >> 1, (full >> 1) + 1}
    return tuple(sorted({value & full for value in corners} | {rng.getrandbits(width) for _ in range(6)}))


def value(rng: random.Random, width: int) -> int:
    """A value of the pool, or, one time in four, any."""
    return rng.getrandbits(width) if rng.random() < 0.25 else rng.choice(pool(width))


def _bytes(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def _match(rng: random.Random, field: p4i.MatchField) -> p4r.FieldMatch | None:
    """A key that P4Runtime accepts; None: anything."""
    width = field.bitwidth
    full, drawn = (1 << width) - 1, value(rng, width)
    match = p4r.FieldMatch(field_id=field.id)
    if field.match_type == p4i.MatchField.EXACT:
        match.exact.value = _bytes(drawn)
    elif field.match_type == p4i.MatchField.OPTIONAL:
        if rng.random() < 0.3:
            return None
        match.optional.value = _bytes(drawn)
    elif field.match_type == p4i.MatchField.LPM:
        length = rng.choice([0, width, width, rng.randrange(width + 1)])
        if not length:
            return None
        match.lpm.prefix_len = length
        match.lpm.value = _bytes(drawn >> width - length << width - length)
    elif field.match_type == p4i.MatchField.TERNARY:
        mask = rng.choice([0, full, full, rng.getrandbits(width), full >> rng.randrange(width)])
        if not mask:
            return None
        match.ternary.mask, match.ternary.value = _bytes(mask), _bytes(drawn & mask)
    else:
        low, high = sorted((drawn, rng.choice([drawn, value(rng, width)])))
        if (low, high) == (0, full):
            return None
        match.range.low, match.range.high = _bytes(low), _bytes(high)
    return match


class RandomEntries:
    """Random entities for one P4Info. The same seed gives the same entities."""

    def __init__(self, info: p4i.P4Info, seed: int) -> None:
        self._info = info
        self._rng = random.Random(seed)
        self._actions = {action.preamble.id: action for action in info.actions}

    def all(self) -> list[p4r.Entity]:
        """Action profiles, tables, multicast groups and clone sessions, ready to be written in this order."""
        entities = list(self._profiles())
        for table in self._info.tables:
            entities += self._table(table)
        return entities + list(self._replication())

    def _action(self, table: p4i.Table) -> p4r.Action:
        refs = [ref.id for ref in table.action_refs if ref.scope != p4i.ActionRef.DEFAULT_ONLY]
        action = self._actions[self._rng.choice(refs)]
        call = p4r.Action(action_id=action.preamble.id)
        for param in action.params:
            call.params.add(param_id=param.id, value=_bytes(value(self._rng, param.bitwidth)))
        return call

    def _table(self, table: p4i.Table) -> Iterator[p4r.Entity]:
        if table.is_const_table or not table.match_fields:
            return
        prioritised = any(field.match_type in _PRIORITISED for field in table.match_fields)
        seen = set()
        for number in range(self._rng.choice([0, 1, 4, 12])):
            entity = p4r.Entity()
            entry = entity.table_entry
            entry.table_id = table.preamble.id
            keys = [_match(self._rng, field) for field in table.match_fields]
            entry.match.extend(key for key in keys if key is not None)
            identity = entry.SerializeToString(deterministic=True)
            if identity in seen:
                continue
            seen.add(identity)
            if prioritised:
                entry.priority = number + 1  # equal ones would leave the choice to the target
            if not table.implementation_id:
                entry.action.action.CopyFrom(self._action(table))
            elif table.implementation_id in self._groups and self._rng.random() < 0.7:
                entry.action.action_profile_group_id = self._rng.choice(self._groups[table.implementation_id])
            else:
                entry.action.action_profile_member_id = self._rng.choice(
                    self._members[table.implementation_id]
                )
            yield entity

    def _profiles(self) -> Iterator[p4r.Entity]:
        self._members: dict[int, Sequence[int]] = {}
        self._groups: dict[int, Sequence[int]] = {}
        for profile in self._info.action_profiles:
            number = profile.preamble.id
            table = next(table for table in self._info.tables if table.preamble.id in profile.table_ids)
            self._members[number] = range(1, 7)
            for member in self._members[number]:
                entity = p4r.Entity()
                entity.action_profile_member.action_profile_id = number
                entity.action_profile_member.member_id = member
                entity.action_profile_member.action.CopyFrom(self._action(table))
                yield entity
            if not profile.with_selector:
                continue
            self._groups[number] = range(1, 4)
            for group in self._groups[number]:
                entity = p4r.Entity()
                entity.action_profile_group.action_profile_id = number
                entity.action_profile_group.group_id = group
                entity.action_profile_group.max_size = 8
                for member in self._rng.sample(self._members[number], self._rng.randint(1, 6)):
                    entity.action_profile_group.members.add(member_id=member, weight=1)
                yield entity

    def _replication(self) -> Iterator[p4r.Entity]:
        for group in (1, 5):
            entity = p4r.Entity()
            entry: Any = entity.packet_replication_engine_entry.multicast_group_entry
            entry.multicast_group_id = group
            self._replicas(entry)
            yield entity
        for session in (1, 7):
            entity = p4r.Entity()
            entry = entity.packet_replication_engine_entry.clone_session_entry
            entry.session_id = session
            self._replicas(entry)
            yield entity

    def _replicas(self, entry: Any) -> None:
        chosen = {
            (self._rng.choice(PORTS), self._rng.randrange(1, 4)) for _ in range(self._rng.randint(1, 4))
        }
        for port, instance in sorted(chosen):
            entry.replicas.add(egress_port=port, instance=instance)
