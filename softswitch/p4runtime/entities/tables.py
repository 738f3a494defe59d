"""Table entries, default entries, direct counters and direct meters (spec 9.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4i, p4r
from grpc import StatusCode

from softswitch.contract import Action, ActionCall, Datapath, Group, Match, Member, MeterConfig
from softswitch.p4runtime.entities.counts import counts, fill_counts
from softswitch.p4runtime.entities.meters import fill_meter, meter_config, refuse_colours
from softswitch.p4runtime.entities.profiles import Profile, Profiles
from softswitch.p4runtime.p4info import P4Info, Table
from softswitch.p4runtime.status import Refused, invalid, not_found

Key = tuple[tuple[Match, ...], int]  # the match, and the priority (0 if the table needs none)


@dataclass
class _Entry:
    handle: int
    action: Action
    one_shot: Any = None  # the ActionProfileActionSet that `action` stands for
    is_const: bool = False
    metadata: bytes = b""
    cookie: int = 0  # controller_metadata
    meter: MeterConfig | None = None


@dataclass
class _Default:
    action: ActionCall | None = None  # None: the program's own
    metadata: bytes = b""
    cookie: int = 0


class _State:
    """The entries of one table."""

    def __init__(self, table: Table, datapath: Datapath, profile: Profile | None) -> None:
        self.table = table
        self.profile = profile
        self.default = _Default()
        self.entries: dict[Key, _Entry] = {
            (entry.match, entry.priority if table.by_priority else 0): _Entry(
                entry.handle, entry.action, is_const=table.is_const
            )
            for entry in datapath.initial_entries(table.name)
        }


class Tables:
    """All tables of one program."""

    def __init__(self, info: P4Info, datapath: Datapath, profiles: Profiles) -> None:
        self._info = info
        self._datapath = datapath
        self._states = {
            table.id: _State(table, datapath, profiles.named.get(table.profile or ""))
            for table in info.tables.values()
        }

    def _state(self, table_id: int) -> _State:
        self._info.table(table_id)
        return self._states[table_id]

    # Writing

    def write(self, kind: int, message: Any) -> None:
        """Apply one update. Raises Refused, and then changes nothing, if it is not valid."""
        state = self._state(message.table_id)
        table = state.table
        if message.HasField("time_since_last_hit"):
            raise invalid(f"{table.name}: time_since_last_hit is read-only")
        if message.is_const:
            raise invalid(f"{table.name}: is_const is read-only")
        if message.is_default_action:
            self._write_default(state, kind, message)
            return
        if not table.keys:
            raise invalid(f"{table.name} has no key: it has only its default entry")
        key = self._key(table, message)
        match kind:
            case p4r.Update.INSERT:
                self._insert(state, key, message)
            case p4r.Update.MODIFY:
                self._modify(state, key, message)
            case _:
                self._delete(state, key)

    def _key(self, table: Table, message: Any) -> Key:
        match = table.match(message.match)
        if table.by_priority and message.priority <= 0:
            raise invalid(f"{table.name}: the entry needs a priority above 0, not {message.priority}")
        if not table.by_priority and message.priority:
            raise invalid(
                f"{table.name}: priority {message.priority} must be 0: no key is ternary, range or optional"
            )
        return match, message.priority

    def _insert(self, state: _State, key: Key, message: Any) -> None:
        table = state.table
        if table.is_const:
            raise Refused(StatusCode.PERMISSION_DENIED, f"{table.name} is constant")
        if key in state.entries:
            raise Refused(StatusCode.ALREADY_EXISTS, f"{table.name} already has the entry {show(table, key)}")
        if len(state.entries) >= table.size:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED, f"{table.name} is full: it holds {table.size} entries"
            )
        meter = self._check_direct(table, message)
        action, one_shot = self._action(state, message.action)
        try:
            handle = self._datapath.table_insert(table.name, *key, action)
        except Exception:
            self._release(state, action, one_shot)
            raise
        entry = _Entry(handle, action, one_shot, False, message.metadata, message.controller_metadata)
        state.entries[key] = entry
        self._set_direct(table, entry, message, meter)

    def _modify(self, state: _State, key: Key, message: Any) -> None:
        table = state.table
        entry = state.entries.get(key)
        if entry is None:
            raise not_found(f"{table.name} has no entry {show(table, key)}")
        meter = self._check_direct(table, message)
        if message.HasField("action"):
            if entry.is_const:
                raise Refused(
                    StatusCode.PERMISSION_DENIED, f"{table.name}: {show(table, key)} is a constant entry"
                )
            action, one_shot = self._action(state, message.action)
            try:
                self._datapath.table_modify(table.name, entry.handle, action)
            except Exception:
                self._release(state, action, one_shot)
                raise
            self._release(state, entry.action, entry.one_shot)
            entry.action, entry.one_shot = action, one_shot
        entry.metadata, entry.cookie = message.metadata, message.controller_metadata
        self._set_direct(table, entry, message, meter)

    def _delete(self, state: _State, key: Key) -> None:
        table = state.table
        if table.is_const:
            raise Refused(StatusCode.PERMISSION_DENIED, f"{table.name} is constant")
        entry = state.entries.get(key)
        if entry is None:
            raise not_found(f"{table.name} has no entry {show(table, key)}")
        if entry.is_const:
            raise Refused(
                StatusCode.PERMISSION_DENIED, f"{table.name}: {show(table, key)} is a constant entry"
            )
        self._datapath.table_delete(table.name, entry.handle)
        del state.entries[key]
        self._release(state, entry.action, entry.one_shot)

    @staticmethod
    def _release(state: _State, action: Action, one_shot: Any) -> None:
        if state.profile is not None and not isinstance(action, ActionCall):
            state.profile.release(action, one_shot is not None)

    def _action(self, state: _State, message: Any) -> tuple[Action, Any]:
        """Return the action of an entry, and for a one-shot the message to return on reading.

        Members and groups are marked as in use in their profile.
        """
        table, profile = state.table, state.profile
        match given := message.WhichOneof("type"):
            case None:
                raise invalid(f"{table.name}: the entry has no action")
            case "action" if profile is None:
                return self.call(table, message.action), None
            case "action_profile_member_id" if profile is not None:
                return profile.hold(Member(message.action_profile_member_id)), None
            case "action_profile_group_id" if profile is not None:
                return profile.hold(Group(message.action_profile_group_id)), None
            case "action_profile_action_set" if profile is not None:
                return profile.make_one_shot(message.action_profile_action_set)
        source = "with the entry" if profile is None else f"from action profile {table.profile}"
        raise invalid(f"{table.name}: its actions come {source}, not by {given}")

    def call(self, table: Table, message: Any, scope: int = p4i.ActionRef.DEFAULT_ONLY) -> ActionCall:
        """Return a call of one of the table's actions. Actions of scope `scope` are refused."""
        action = self._info.action(message.action_id)
        if action.id not in table.actions:
            names = ", ".join(self._info.actions[id_].name for id_ in table.actions)
            raise invalid(f"{table.name} does not have action {action.name}; it has {names}")
        if table.actions[action.id] == scope:
            where = "the default entry" if scope == p4i.ActionRef.DEFAULT_ONLY else "entries"
            raise Refused(
                StatusCode.PERMISSION_DENIED, f"{table.name}: action {action.name} is only for {where}"
            )
        return action.call(message)

    def _write_default(self, state: _State, kind: int, message: Any) -> None:
        table = state.table
        if kind != p4r.Update.MODIFY:
            raise invalid(f"{table.name}: the default entry can only be modified")
        if message.match or message.priority or message.idle_timeout_ns:
            raise invalid(f"{table.name}: the default entry has no match, priority or idle timeout")
        if table.const_default or table.profile is not None:
            raise Refused(StatusCode.PERMISSION_DENIED, f"{table.name}: the default action is constant")
        if message.HasField("counter_data") or message.HasField("meter_config"):
            raise Refused(
                StatusCode.UNIMPLEMENTED, f"{table.name}: the default entry has no direct counter or meter"
            )
        action = None
        if message.HasField("action"):
            if message.action.WhichOneof("type") != "action":
                raise invalid(f"{table.name}: the default entry needs an action")
            action = self.call(table, message.action.action, p4i.ActionRef.TABLE_ONLY)
        self._datapath.table_set_default(table.name, action)
        reset = action is None
        state.default = _Default(
            action, b"" if reset else message.metadata, 0 if reset else message.controller_metadata
        )

    # Direct resources

    def _check_direct(self, table: Table, message: Any) -> MeterConfig | None:
        if message.idle_timeout_ns:
            if not table.idle_timeout:
                raise invalid(f"{table.name} does not support idle timeouts")
            raise Refused(StatusCode.UNIMPLEMENTED, f"{table.name}: idle timeouts are not supported")
        refuse_colours(message, "meter_counter_data", table.name)
        if message.HasField("counter_data"):
            if table.direct_counter is None:
                raise invalid(f"{table.name} has no direct counter")
            counts(message.counter_data, f"{table.name}: counter_data")
        if not message.HasField("meter_config"):
            return None
        if table.direct_meter is None:
            raise invalid(f"{table.name} has no direct meter")
        return meter_config(message.meter_config, table.name)

    def _set_direct(self, table: Table, entry: _Entry, message: Any, meter: MeterConfig | None) -> None:
        if message.HasField("counter_data"):
            counted = counts(message.counter_data, table.name)
            self._datapath.direct_counter_write(table.name, entry.handle, *counted)
        if meter != entry.meter:
            self._datapath.direct_meter_write(table.name, entry.handle, meter)
            entry.meter = meter

    def _direct_entry(self, message: Any, what: str) -> tuple[Table, Key, _Entry]:
        state = self._state(message.table_id)
        table = state.table
        if message.is_default_action:
            raise Refused(StatusCode.UNIMPLEMENTED, f"{table.name}: the default entry has no {what}")
        if getattr(table, what.replace(" ", "_")) is None:
            raise invalid(f"{table.name} has no {what}")
        key = self._key(table, message)
        if key not in state.entries:
            raise not_found(f"{table.name} has no entry {show(table, key)}")
        return table, key, state.entries[key]

    def write_direct_counter(self, kind: int, message: Any) -> None:
        """Set the direct counter of an entry."""
        if kind != p4r.Update.MODIFY:
            raise invalid("a direct counter can only be modified")
        table, _, entry = self._direct_entry(message.table_entry, "direct counter")
        if message.HasField("data"):
            counted = counts(message.data, f"{table.name}: direct counter")
            self._datapath.direct_counter_write(table.name, entry.handle, *counted)

    def write_direct_meter(self, kind: int, message: Any) -> None:
        """Configure a direct meter. Without a configuration it marks every packet green."""
        if kind != p4r.Update.MODIFY:
            raise invalid("a direct meter can only be modified")
        refuse_colours(message, "counter_data", "direct meter")
        table, _, entry = self._direct_entry(message.table_entry, "direct meter")
        config = meter_config(message.config, table.name) if message.HasField("config") else None
        self._datapath.direct_meter_write(table.name, entry.handle, config)
        entry.meter = config

    # Reading

    def read(self, message: Any) -> Iterator[Any]:
        """Yield the entities that a TableEntry asks for (spec 9.1.6)."""
        for state in [self._state(message.table_id)] if message.table_id else self._states.values():
            for key, entry in self._selected(state, message):
                entity = p4r.Entity()
                self._fill(state, key, entry, message, entity.table_entry)
                yield entity

    def _selected(self, state: _State, message: Any) -> Iterator[tuple[Key, _Entry | None]]:
        table = state.table
        refuse_colours(message, "meter_counter_data", table.name)
        if message.HasField("time_since_last_hit"):
            if message.table_id:
                raise invalid(f"{table.name} does not support idle timeouts")
            return
        if message.is_default_action:
            yield ((), 0), None
            return
        if message.table_id and message.match:
            match = table.match(message.match)
            if not table.by_priority or message.priority:
                keys = [key for key in [(match, message.priority)] if key in state.entries]
            else:
                keys = [key for key in state.entries if key[0] == match]
            found = [(key, state.entries[key]) for key in keys]
        else:
            found = list(state.entries.items())
        action = message.action.action.action_id if message.HasField("action") else 0
        for key, entry in found:
            if message.priority and key[1] != message.priority:
                continue
            if message.controller_metadata and entry.cookie != message.controller_metadata:
                continue
            if message.metadata and entry.metadata != message.metadata:
                continue
            if action and not (
                isinstance(entry.action, ActionCall)
                and self._info.action_named[entry.action.action].id == action
            ):
                continue
            yield key, entry

    def _fill(self, state: _State, key: Key, entry: _Entry | None, request: Any, message: Any) -> None:
        table = state.table
        message.table_id = table.id
        if entry is None:
            message.is_default_action = True
            message.metadata = state.default.metadata
            message.controller_metadata = state.default.cookie
            action = state.default.action or self._datapath.initial_default(table.name)
            if action is not None and action.action in self._info.action_named:
                self._info.action_named[action.action].fill(action.args, message.action.action)
            return
        for field, value in zip(table.keys, key[0], strict=True):
            field.fill(value, message.match)
        message.priority = key[1]
        message.metadata = entry.metadata
        message.controller_metadata = entry.cookie
        message.is_const = entry.is_const
        match entry.action:
            case ActionCall(name, args):
                self._info.action_named[name].fill(args, message.action.action)
            case _ if entry.one_shot is not None:
                message.action.action_profile_action_set.CopyFrom(entry.one_shot)
            case Member(id_):
                message.action.action_profile_member_id = id_
            case Group(id_):
                message.action.action_profile_group_id = id_
        if request.HasField("counter_data") and table.direct_counter is not None:
            fill_counts(self._datapath.direct_counter_read(table.name, entry.handle), message.counter_data)
        if request.HasField("meter_config") and entry.meter is not None:
            fill_meter(entry.meter, message.meter_config)

    def state(self) -> Iterator[Any]:
        """Yield the updates that lead from the program's initial state to the current one."""
        request = p4r.TableEntry()
        request.meter_config.SetInParent()
        for state in self._states.values():
            if state.default.action is not None:
                update = p4r.Update(type=p4r.Update.MODIFY)
                self._fill(state, ((), 0), None, request, update.entity.table_entry)
                yield update
            for key, entry in state.entries.items():
                if not entry.is_const:
                    update = p4r.Update(type=p4r.Update.INSERT)
                    self._fill(state, key, entry, request, update.entity.table_entry)
                    yield update

    def read_direct_counter(self, message: Any) -> Iterator[Any]:
        """Yield the direct counters of one entry, of one table, or of all tables."""
        for state, key, entry in self._direct(message.table_entry, "direct counter"):
            entity = p4r.Entity()
            reading = entity.direct_counter_entry
            self._fill_key(state.table, key, reading.table_entry)
            fill_counts(self._datapath.direct_counter_read(state.table.name, entry.handle), reading.data)
            yield entity

    def read_direct_meter(self, message: Any) -> Iterator[Any]:
        """Yield the direct meters of one entry, of one table, or of all tables."""
        refuse_colours(message, "counter_data", "direct meter")
        for state, key, entry in self._direct(message.table_entry, "direct meter"):
            entity = p4r.Entity()
            self._fill_key(state.table, key, entity.direct_meter_entry.table_entry)
            if entry.meter is not None:
                fill_meter(entry.meter, entity.direct_meter_entry.config)
            yield entity

    def _direct(self, message: Any, what: str) -> Iterator[tuple[_State, Key, _Entry]]:
        if message.table_id and message.match:
            _, key, entry = self._direct_entry(message, what)
            yield self._states[message.table_id], key, entry
            return
        for state in [self._state(message.table_id)] if message.table_id else self._states.values():
            if getattr(state.table, what.replace(" ", "_")) is not None:
                for key, entry in state.entries.items():
                    yield state, key, entry
            elif message.table_id:
                raise invalid(f"{state.table.name} has no {what}")

    @staticmethod
    def _fill_key(table: Table, key: Key, message: Any) -> None:
        message.table_id = table.id
        message.priority = key[1]
        for field, value in zip(table.keys, key[0], strict=True):
            field.fill(value, message.match)


def show(table: Table, key: Key) -> str:
    """Return an entry's key for a message, such as `(ipv4.dst 0xa000000/8, priority 7)`."""
    shown = [f"{field.name} {field.show(value)}" for field, value in zip(table.keys, key[0], strict=True)]
    return f"({', '.join(shown + ([f'priority {key[1]}'] if key[1] else []))})"
