"""Action profiles and selectors: members, groups, one-shot action sets, watch ports (spec 9.2).

A datapath's group is a set of members, from which a packet's hash selects one. A member of weight n becomes n
members with the same action, as PI does for BMv2. So the same hash selects the same action on both.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4r
from grpc import StatusCode

from softswitch.contract import ActionCall, Datapath, Group, Member
from softswitch.p4runtime import p4info
from softswitch.p4runtime.status import Refused, invalid, not_found

PORT_WIDTH = 32

PortIsUp = Callable[[int], bool]


@dataclass(frozen=True)
class _Choice:
    """A member within a group."""

    member: int
    weight: int
    watch: int | None
    numbered: bool = False  # uses the deprecated `watch`, and is read back that way


@dataclass
class _Member:
    call: ActionCall
    count: int = 1  # in the datapath: the largest weight that any group gives it


@dataclass
class _Group:
    choices: tuple[_Choice, ...]
    max_size: int = 0


class _Slots:
    """Allocates the lowest free number."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give(self, number: int) -> None:
        heapq.heappush(self._free, number)


def _copy(member: int, number: int) -> int:
    """Return the datapath's id of a copy of a member. Copy 0 is the member itself; ids have 32 bits."""
    return number << 32 | member


def port_number(data: bytes, what: str) -> int:
    """Return the number of a port, which P4Runtime encodes as a bytestring."""
    return p4info.decode(data, PORT_WIDTH, what)


def _watch(message: Any, what: str) -> int | None:
    match message.WhichOneof("watch_kind"):
        case "watch_port" if message.watch_port:
            return port_number(message.watch_port, f"{what}: watch port")
        case "watch" if message.watch:
            return int(message.watch)
        case _:
            return None


class Profile:
    """One action profile or selector."""

    def __init__(
        self, profile: p4info.Profile, info: p4info.P4Info, datapath: Datapath, port_is_up: PortIsUp
    ) -> None:
        self.profile = profile
        self._info = info
        self._datapath = datapath
        self._port_is_up = port_is_up
        self.members: dict[int, _Member] = {}
        self.groups: dict[int, _Group] = {}
        self._one_shots: dict[int, _Group] = {}
        self._hidden_members, self._hidden_groups = (
            _Slots(1),
            _Slots(1),
        )  # ids of the members and groups of one-shots
        self._held: Counter[Member | Group] = Counter()  # references from table entries

    # References from table entries

    def hold(self, action: Member | Group) -> Member | Group:
        """Count a table entry's reference to `action`. Raises Refused if there is no such member or group."""
        name = self.profile.name
        if isinstance(action, Group) and not self.profile.with_selector:
            raise invalid(f"{name} is an action profile without selector: it has no groups")
        if action.id not in (self.members if isinstance(action, Member) else self.groups):
            raise not_found(f"{name} has no {type(action).__name__.lower()} {action.id}")
        self._held[action] += 1
        return action

    def release(self, action: Member | Group, one_shot: bool) -> None:
        """Drop a table entry's reference. A one-shot's group is deleted with it."""
        if one_shot:
            self._drop_one_shot(action.id)
            return
        self._held[action] -= 1
        if not self._held[action]:
            del self._held[action]

    # Members

    def write_member(self, kind: int, message: Any) -> None:
        """Insert, modify or delete a member."""
        name, id_ = self.profile.name, message.member_id
        if not id_:
            raise invalid(f"{name}: member id 0 is reserved")
        exists = id_ in self.members
        if kind == p4r.Update.DELETE:
            if not exists:
                raise not_found(f"{name} has no member {id_}")
            self._check_unused(id_)
            self._datapath.member_delete(name, id_)
            del self.members[id_]
            return
        if (kind == p4r.Update.INSERT) == exists:
            if exists:
                raise Refused(StatusCode.ALREADY_EXISTS, f"{name} already has member {id_}")
            raise not_found(f"{name} has no member {id_}")
        if not message.HasField("action"):
            raise invalid(f"{name}: member {id_} has no action")
        call = self._call(message.action)
        if exists:
            for number in range(self.members[id_].count):
                self._datapath.member_modify(name, _copy(id_, number), call)
            self.members[id_].call = call
            return
        self._check_style(self._one_shots, "one-shot action sets")
        self._check_size(1)
        self._datapath.member_insert(name, id_, call)
        self.members[id_] = _Member(call)

    def _check_unused(self, id_: int) -> None:
        name = self.profile.name
        if self._held[Member(id_)]:
            raise Refused(StatusCode.FAILED_PRECONDITION, f"{name}: member {id_} is used by a table entry")
        for group_id, group in self.groups.items():
            if any(choice.member == id_ for choice in group.choices):
                raise Refused(StatusCode.FAILED_PRECONDITION, f"{name}: member {id_} is in group {group_id}")

    def _check_size(self, more: int) -> None:
        used = sum(member.count for member in self.members.values())
        used += sum(len(group.choices) for group in self._one_shots.values())
        if used + more > self.profile.size:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{self.profile.name} is full: it holds {self.profile.size} members",
            )

    def _check_style(self, other: object, what: str) -> None:
        if other:
            raise invalid(f"{self.profile.name} is programmed by {what}; the two styles cannot be mixed")

    def _call(self, message: Any) -> ActionCall:
        action = self._info.action(message.action_id)
        if action.id not in self.profile.actions:
            raise invalid(f"{self.profile.name}: its tables do not have action {action.name}")
        return action.call(message)

    def read_members(self, id_: int) -> Iterator[Any]:
        """Yield the members, or the one with `id_`."""
        for member_id, member in self.members.items():
            if id_ in (0, member_id):
                entity = p4r.Entity()
                message = entity.action_profile_member
                message.action_profile_id, message.member_id = self.profile.id, member_id
                self._info.action_named[member.call.action].fill(member.call.args, message.action)
                yield entity

    # Groups

    def write_group(self, kind: int, message: Any) -> None:
        """Insert, modify or delete a group."""
        name, id_ = self.profile.name, message.group_id
        if not self.profile.with_selector:
            raise invalid(f"{name} is an action profile without selector: it has no groups")
        if not id_:
            raise invalid(f"{name}: group id 0 is reserved")
        group = self.groups.get(id_)
        if kind == p4r.Update.INSERT:
            if group is not None:
                raise Refused(StatusCode.ALREADY_EXISTS, f"{name} already has group {id_}")
            self._check_style(self._one_shots, "one-shot action sets")
            group = self._group(message)
            self._make_copies(group)
            self._datapath.group_insert(name, id_, self._listed(group))
            self.groups[id_] = group
            return
        if group is None:
            raise not_found(f"{name} has no group {id_}")
        if kind == p4r.Update.MODIFY:
            changed = self._group(message)
            if changed.max_size != group.max_size:
                raise invalid(f"{name}: the max_size of group {id_} cannot change from {group.max_size}")
            self._make_copies(changed)
            self._datapath.group_modify(name, id_, self._listed(changed))
            self.groups[id_] = changed
            self._drop_copies(group)
            return
        if self._held[Group(id_)]:
            raise Refused(StatusCode.FAILED_PRECONDITION, f"{name}: group {id_} is used by a table entry")
        self._datapath.group_delete(name, id_)
        del self.groups[id_]
        self._drop_copies(group)

    def _make_copies(self, group: _Group) -> None:
        """Create the copies of members that the group's weights need, in the same order as PI."""
        choices = sorted(group.choices, key=lambda choice: choice.member)
        self._check_size(sum(max(0, c.weight - self.members[c.member].count) for c in choices))
        for choice in choices:
            member = self.members[choice.member]
            while member.count < choice.weight:
                self._datapath.member_insert(
                    self.profile.name, _copy(choice.member, member.count), member.call
                )
                member.count += 1

    def _drop_copies(self, group: _Group) -> None:
        """Remove the copies of the group's members that no group needs any longer."""
        for choice in group.choices:
            member = self.members[choice.member]
            weights = [c.weight for g in self.groups.values() for c in g.choices if c.member == choice.member]
            while member.count > max(weights, default=1):
                member.count -= 1
                self._datapath.member_delete(self.profile.name, _copy(choice.member, member.count))

    def _group(self, message: Any) -> _Group:
        name = self.profile.name
        what = f"{name}: group {message.group_id}"
        choices = tuple(
            _Choice(
                m.member_id,
                self._weight(m.weight, what),
                _watch(m, what),
                m.WhichOneof("watch_kind") == "watch",
            )
            for m in message.members
        )
        seen: set[int] = set()
        for choice in choices:
            if choice.member not in self.members:
                raise not_found(f"{what}: there is no member {choice.member}")
            if choice.member in seen:
                raise invalid(f"{what}: member {choice.member} is listed twice; use its weight")
            seen.add(choice.member)
        limit = self.profile.max_group_size
        if message.max_size < 0 or (limit and message.max_size > limit):
            raise invalid(f"{what}: max_size {message.max_size} is not in 0..{limit}")
        self._check_group_size(choices, message.max_size or limit, what, StatusCode.RESOURCE_EXHAUSTED)
        return _Group(choices, message.max_size)

    def _weight(self, weight: int, what: str) -> int:
        if self.profile.weights_disallowed:
            if weight:
                raise invalid(f"{what}: this selector's members have no weights")
            return 1
        if weight <= 0:
            raise invalid(f"{what}: a member's weight is at least 1, not {weight}")
        if self.profile.max_member_weight and weight > self.profile.max_member_weight:
            raise invalid(f"{what}: weight {weight} is above {self.profile.max_member_weight}")
        return weight

    def _check_group_size(
        self, choices: tuple[_Choice, ...], limit: int, what: str, code: StatusCode
    ) -> None:
        size = len(choices) if self.profile.sum_of_members else sum(choice.weight for choice in choices)
        if limit and size > limit:
            raise Refused(code, f"{what}: {size} members, counted by weight, are more than {limit}")

    def _listed(self, group: _Group) -> tuple[int, ...]:
        """Return the members that currently receive packets."""
        alive = [c for c in group.choices if c.watch is None or self._port_is_up(c.watch)]
        return tuple(_copy(c.member, number) for c in alive for number in range(c.weight))

    def read_groups(self, id_: int) -> Iterator[Any]:
        """Yield the groups, or the one with `id_`."""
        for group_id, group in self.groups.items():
            if id_ in (0, group_id):
                entity = p4r.Entity()
                message = entity.action_profile_group
                message.action_profile_id, message.group_id = self.profile.id, group_id
                message.max_size = group.max_size
                for choice in group.choices:
                    weight = 0 if self.profile.weights_disallowed else choice.weight
                    member = message.members.add(member_id=choice.member, weight=weight)
                    if choice.watch is not None and choice.numbered:
                        member.watch = choice.watch
                    elif choice.watch is not None:
                        member.watch_port = p4info.encode(choice.watch)
                yield entity

    def port_changed(self, port: int) -> None:
        """Update the groups that watch a port after it has gone up or down."""
        for groups in (self.groups, self._one_shots):
            for id_, group in groups.items():
                if any(choice.watch == port for choice in group.choices):
                    self._datapath.group_modify(self.profile.name, id_, self._listed(group))

    # One-shots

    def make_one_shot(self, message: Any) -> tuple[Group, Any]:
        """Create an ActionProfileActionSet's members and group. Return the group and the canonical form."""
        name = self.profile.name
        if not self.profile.with_selector:
            raise invalid(f"{name} is an action profile without selector: it accepts no action set")
        if message.action_selection_mode or message.size_semantics:
            raise Refused(
                StatusCode.UNIMPLEMENTED, f"{name}: selection mode and size semantics are set by the selector"
            )
        self._check_style(self.members or self.groups, "members and groups")
        what = f"{name}: action set"
        calls = [self._call(given.action) for given in message.action_profile_actions]
        weights = [self._weight(given.weight, what) for given in message.action_profile_actions]
        watches = [_watch(given, what) for given in message.action_profile_actions]
        self._check_group_size(
            tuple(_Choice(0, weight, None) for weight in weights),
            self.profile.max_group_size,
            what,
            StatusCode.INVALID_ARGUMENT,
        )
        self._check_size(sum(weights))

        canonical = p4r.ActionProfileActionSet()
        choices: list[_Choice] = []
        try:
            for call, weight, watch, given in zip(
                calls, weights, watches, message.action_profile_actions, strict=True
            ):
                kept = canonical.action_profile_actions.add(weight=given.weight)
                self._info.action_named[call.action].fill(call.args, kept.action)
                if watch is not None:
                    kept.watch_port = p4info.encode(watch)
                for _ in range(weight):
                    id_ = self._hidden_members.take()
                    self._datapath.member_insert(name, id_, call)
                    choices.append(_Choice(id_, 1, watch))
            group = _Group(tuple(choices))
            group_id = self._hidden_groups.take()
            self._datapath.group_insert(name, group_id, self._listed(group))
        except Exception:
            for choice in choices:
                self._datapath.member_delete(name, choice.member)
                self._hidden_members.give(choice.member)
            raise
        self._one_shots[group_id] = group
        return Group(group_id), canonical

    def _drop_one_shot(self, id_: int) -> None:
        name = self.profile.name
        self._datapath.group_delete(name, id_)
        self._hidden_groups.give(id_)
        for choice in self._one_shots.pop(id_).choices:
            self._datapath.member_delete(name, choice.member)
            self._hidden_members.give(choice.member)


class Profiles:
    """All action profiles of one program."""

    def __init__(self, info: p4info.P4Info, datapath: Datapath, port_is_up: PortIsUp) -> None:
        self._by_id = {p.id: Profile(p, info, datapath, port_is_up) for p in info.profiles.values()}
        self.named = {profile.profile.name: profile for profile in self._by_id.values()}

    def _profile(self, id_: int) -> Profile:
        try:
            return self._by_id[id_]
        except KeyError:
            raise invalid(f"no action profile has id {id_:#x}") from None

    def write_member(self, kind: int, message: Any) -> None:
        """Apply an update of an ActionProfileMember."""
        self._profile(message.action_profile_id).write_member(kind, message)

    def write_group(self, kind: int, message: Any) -> None:
        """Apply an update of an ActionProfileGroup."""
        self._profile(message.action_profile_id).write_group(kind, message)

    def _asked(self, id_: int) -> list[Profile]:
        return [self._profile(id_)] if id_ else list(self._by_id.values())

    def read_members(self, message: Any) -> Iterator[Any]:
        """Yield the members that an ActionProfileMember asks for. Id 0 matches all."""
        for profile in self._asked(message.action_profile_id):
            yield from profile.read_members(message.member_id)

    def read_groups(self, message: Any) -> Iterator[Any]:
        """Yield the groups that an ActionProfileGroup asks for. Id 0 matches all."""
        for profile in self._asked(message.action_profile_id):
            yield from profile.read_groups(message.group_id)

    def port_changed(self, port: int) -> None:
        """Update the groups that watch a port, in all profiles."""
        for profile in self._by_id.values():
            profile.port_changed(port)
