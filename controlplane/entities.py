"""Desired state as P4Runtime entities: their keys, their canonical form, and the difference of two states.

A state is a set of table entries, action-profile members and groups. Two entities with the same key are the
same object. The target's encoding (leading zeros, order of fields, counters) does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import finsy as fy
from finsy.proto import p4r

State = Mapping[bytes, p4r.Entity]
"""Canonical entities by key."""


@dataclass(frozen=True)
class Difference:
    """Updates that turn one state into another, ordered so that references always resolve."""

    updates: tuple[p4r.Update, ...]

    def count(self, kind: int) -> int:
        """Return the number of updates of a type (`p4r.Update.INSERT`, `.MODIFY`, `.DELETE`)."""
        return sum(update.type == kind for update in self.updates)


def whole_state(
    schema: fy.P4Schema,
) -> Iterator[fy.P4TableEntry | fy.P4ActionProfileMember | fy.P4ActionProfileGroup]:
    """Yield the wildcard entities that read a switch's whole state.

    They name each action profile: Stratum does not read all profiles at once.
    """
    yield fy.P4TableEntry()
    for profile in schema.action_profiles:
        yield fy.P4ActionProfileMember(profile.name)
        yield fy.P4ActionProfileGroup(profile.name)


def state_of(entities: Iterable[p4r.Entity], schema: fy.P4Schema) -> dict[bytes, p4r.Entity]:
    """Return the state of `entities`, without const tables and default entries."""
    const = {table.id for table in schema.tables if table.is_const}
    state = {}
    for entity in entities:
        entry = entity.table_entry
        if entity.HasField("table_entry") and (
            entry.is_default_action or entry.is_const or entry.table_id in const
        ):
            continue
        canonical = _canonical(entity)
        state[key_of(canonical)] = canonical
    return state


def key_of(entity: p4r.Entity) -> bytes:
    """Return the key of a canonical entity: table, match and priority, or profile and id."""
    key = p4r.Entity()
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = entity.table_entry
            key.table_entry.table_id = entry.table_id
            key.table_entry.match.extend(entry.match)
            key.table_entry.priority = entry.priority
        case "action_profile_member":
            key.action_profile_member.action_profile_id = entity.action_profile_member.action_profile_id
            key.action_profile_member.member_id = entity.action_profile_member.member_id
        case "action_profile_group":
            key.action_profile_group.action_profile_id = entity.action_profile_group.action_profile_id
            key.action_profile_group.group_id = entity.action_profile_group.group_id
        case other:
            raise ValueError(f"{other} is not part of a state")
    return bytes(key.SerializeToString(deterministic=True))


def merged(*states: Mapping[str, State]) -> dict[str, State]:
    """Return the states, by switch, together. Of two entities with the same key the later one counts."""
    names = dict.fromkeys(name for each in states for name in each)
    return {
        name: {key: entity for each in states for key, entity in each.get(name, {}).items()} for name in names
    }


def difference(actual: State, desired: State) -> Difference:
    """Return the updates that bring a switch from state `actual` to `desired`."""
    inserts = [entity for key, entity in desired.items() if key not in actual]
    modifies = [
        entity
        for key, entity in desired.items()
        if key in actual and entity is not actual[key] and entity != actual[key]
    ]
    deletes = [entity for key, entity in actual.items() if key not in desired]
    # Insert members before groups, and groups before the entries that refer to them; delete in reverse order.
    # Delete entries before inserting others, because a table may be full.
    order = [
        *_updates(p4r.Update.INSERT, inserts, "action_profile_member"),
        *_updates(p4r.Update.MODIFY, modifies, "action_profile_member"),
        *_updates(p4r.Update.INSERT, inserts, "action_profile_group"),
        *_updates(p4r.Update.MODIFY, modifies, "action_profile_group"),
        *_updates(p4r.Update.DELETE, deletes, "table_entry"),
        *_updates(p4r.Update.MODIFY, modifies, "table_entry"),
        *_updates(p4r.Update.INSERT, inserts, "table_entry"),
        *_updates(p4r.Update.DELETE, deletes, "action_profile_group"),
        *_updates(p4r.Update.DELETE, deletes, "action_profile_member"),
    ]
    return Difference(tuple(order))


def _updates(kind: int, entities: Iterable[p4r.Entity], which: str) -> list[p4r.Update]:
    return [p4r.Update(type=kind, entity=entity) for entity in entities if entity.HasField(which)]


def _canonical(entity: p4r.Entity) -> p4r.Entity:
    result = p4r.Entity()
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = entity.table_entry
            result.table_entry.table_id = entry.table_id
            result.table_entry.priority = entry.priority
            for field in sorted(entry.match, key=lambda field: field.field_id):
                result.table_entry.match.add().CopyFrom(_shortest(field))
            if entry.HasField("action"):
                result.table_entry.action.CopyFrom(entry.action)
                if entry.action.HasField("action"):
                    _canonical_action(result.table_entry.action.action)
        case "action_profile_member":
            result.CopyFrom(entity)
            _canonical_action(result.action_profile_member.action)
        case "action_profile_group":
            group = entity.action_profile_group
            result.action_profile_group.action_profile_id = group.action_profile_id
            result.action_profile_group.group_id = group.group_id
            result.action_profile_group.max_size = group.max_size
            for member in sorted(group.members, key=lambda member: member.member_id):
                kept = result.action_profile_group.members.add()
                kept.member_id, kept.weight = member.member_id, member.weight
    return result


def _canonical_action(action: p4r.Action) -> None:
    parameters = sorted(action.params, key=lambda param: param.param_id)
    kept = [p4r.Action.Param(param_id=param.param_id, value=_strip(param.value)) for param in parameters]
    del action.params[:]
    action.params.extend(kept)


def _shortest(field: p4r.FieldMatch) -> p4r.FieldMatch:
    """Return the match with every byte string in P4Runtime's canonical form (spec 1.4, section 8.4)."""
    result = p4r.FieldMatch()
    result.CopyFrom(field)
    kind = getattr(result, result.WhichOneof("field_match_type"))
    for descriptor, value in kind.ListFields():
        if isinstance(value, bytes):
            setattr(kind, descriptor.name, _strip(value))
    return result


def _strip(value: bytes) -> bytes:
    return value.lstrip(b"\0") or b"\0"
