"""A typed view of P4Info by id, and conversion of P4Runtime's bytestrings (spec 6 and 8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from finsy.proto import p4i

from softswitch.contract import ActionCall, Exact, Lpm, Match, Range, Ternary
from softswitch.p4runtime.status import invalid

_KINDS = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}


_ERROR_BITS = 32  # width of type `error` in p4c's BMv2 JSON; P4Info gives none


def encode(value: int) -> bytes:
    """Return the canonical bytestring of an unsigned integer: the fewest bytes that hold it, at least one."""
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Return a bytestring's value. Raises Refused, naming `what`, if it is empty or exceeds `width` bits."""
    if not data:
        raise invalid(f"{what}: the value is empty")
    value = int.from_bytes(data, "big")
    if value >> width:
        raise invalid(f"{what}: {value:#x} does not fit {width} bits")
    return value


@dataclass(frozen=True)
class Field:
    """A key of a table or value set, a parameter of an action, or a field of a controller header."""

    id: int
    name: str
    width: int
    kind: str = ""  # of a key: exact, lpm, ternary, range, optional
    padding: bool = False

    def match(self, message: Any, table: str) -> Match:
        """Return the value of a FieldMatch (spec 9.1.1). Raises Refused naming the table and the key."""
        what = f"{table}: key {self.name!r}"
        given = message.WhichOneof("field_match_type")
        if given != self.kind:
            raise invalid(f"{what} is matched by {self.kind}, not by {given}")
        full = (1 << self.width) - 1
        omit = "leave out the key to match anything"
        match given:
            case "exact":
                return Exact(decode(message.exact.value, self.width, what))
            case "optional":
                return Ternary(decode(message.optional.value, self.width, what), full)
            case "lpm":
                value, prefix_len = decode(message.lpm.value, self.width, what), message.lpm.prefix_len
                if not 0 < prefix_len <= self.width:
                    raise invalid(f"{what}: prefix length {prefix_len} is not in 1..{self.width}; {omit}")
                if value & (full >> prefix_len):
                    raise invalid(f"{what}: {value:#x} has bits set beyond its prefix of {prefix_len} bits")
                return Lpm(value, prefix_len)
            case "ternary":
                value = decode(message.ternary.value, self.width, what)
                mask = decode(message.ternary.mask, self.width, f"{what}: mask")
                if not mask:
                    raise invalid(f"{what}: the mask is 0; {omit}")
                if value & ~mask:
                    raise invalid(f"{what}: {value:#x} has bits set outside of its mask {mask:#x}")
                return Ternary(value, mask)
            case _:
                low = decode(message.range.low, self.width, f"{what}: low")
                high = decode(message.range.high, self.width, f"{what}: high")
                if low > high:
                    raise invalid(f"{what}: low {low:#x} is above high {high:#x}")
                if low == 0 and high == full:
                    raise invalid(f"{what}: the range is everything; {omit}")
                return Range(low, high)

    def wildcard(self, table: str) -> Match:
        """Return the match of an omitted key. Raises Refused for an exact key."""
        match self.kind:
            case "exact":
                raise invalid(f"{table}: key {self.name!r} is missing; an exact key must be given")
            case "lpm":
                return Lpm(0, 0)
            case "range":
                return Range(0, (1 << self.width) - 1)
            case _:
                return Ternary(0, 0)

    @staticmethod
    def show(value: Match) -> str:
        """Return the value in hexadecimal, for messages."""
        match value:
            case Exact():
                return f"{value.value:#x}"
            case Lpm():
                return f"{value.value:#x}/{value.prefix_len}"
            case Ternary():
                return f"{value.value:#x} &&& {value.mask:#x}"
            case Range():
                return f"{value.low:#x}..{value.high:#x}"

    def fill(self, value: Match, message: Any) -> None:
        """Append the FieldMatch of `value` to the repeated field `message`, unless it matches everything."""
        match value:
            case Exact():
                message.add(field_id=self.id).exact.value = encode(value.value)
            case Lpm(prefix_len=0) | Ternary(mask=0):
                pass
            case Lpm():
                lpm = message.add(field_id=self.id).lpm
                lpm.value, lpm.prefix_len = encode(value.value), value.prefix_len
            case Ternary() if self.kind == "optional":
                message.add(field_id=self.id).optional.value = encode(value.value)
            case Ternary():
                ternary = message.add(field_id=self.id).ternary
                ternary.value, ternary.mask = encode(value.value), encode(value.mask)
            case Range():
                if value != Range(0, (1 << self.width) - 1):
                    range_ = message.add(field_id=self.id).range
                    range_.low, range_.high = encode(value.low), encode(value.high)


@dataclass(frozen=True)
class Action:
    """An action and its parameters."""

    id: int
    name: str
    params: tuple[Field, ...]

    @cached_property
    def _by_id(self) -> dict[int, Field]:
        return {param.id: param for param in self.params}

    def call(self, message: Any) -> ActionCall:
        """Return the call that a p4.v1.Action describes. Raises Refused for wrong parameters."""
        args: dict[int, int] = {}
        for given in message.params:
            param = self._by_id.get(given.param_id)
            if param is None:
                raise invalid(
                    f"action {self.name}: no parameter has id {given.param_id}; {_known(self.params)}"
                )
            if param.id in args:
                raise invalid(f"action {self.name}: parameter {param.name!r} is given twice")
            args[param.id] = decode(given.value, param.width, f"action {self.name}: parameter {param.name!r}")
        for param in self.params:
            if param.id not in args:
                raise invalid(f"action {self.name}: parameter {param.name!r} is missing")
        return ActionCall(self.name, tuple(args[param.id] for param in self.params))

    def fill(self, args: Iterable[int], message: Any) -> None:
        """Write the call with `args` into a p4.v1.Action."""
        message.action_id = self.id
        for param, value in zip(self.params, args, strict=True):
            message.params.add(param_id=param.id, value=encode(value))


@dataclass(frozen=True)
class Table:
    """A table: its keys, its actions, and the names of its profile and direct resources (or None)."""

    id: int
    name: str
    keys: tuple[Field, ...]
    actions: Mapping[int, int]  # by id: p4.config.v1.ActionRef.Scope
    size: int
    is_const: bool
    const_default: bool
    profile: str | None = None
    direct_counter: str | None = None
    direct_meter: str | None = None
    idle_timeout: bool = False

    @cached_property
    def _by_id(self) -> dict[int, Field]:
        return {key.id: key for key in self.keys}

    @cached_property
    def by_priority(self) -> bool:
        """Whether entries need a priority."""
        return any(key.kind in ("ternary", "range", "optional") for key in self.keys)

    def match(self, messages: Any) -> tuple[Match, ...]:
        """Return the values of all keys, in the order of the keys. Raises Refused, naming the wrong key."""
        values: dict[int, Match] = {}
        for message in messages:
            key = self._by_id.get(message.field_id)
            if key is None:
                raise invalid(f"{self.name}: no key has id {message.field_id}; {_known(self.keys)}")
            if key.id in values:
                raise invalid(f"{self.name}: key {key.name!r} is given twice")
            values[key.id] = key.match(message, self.name)
        return tuple(values.get(key.id) or key.wildcard(self.name) for key in self.keys)


@dataclass(frozen=True)
class Profile:
    """An action profile, or an action selector."""

    id: int
    name: str
    with_selector: bool
    size: int
    max_group_size: int
    weights_disallowed: bool
    sum_of_members: bool
    max_member_weight: int
    actions: frozenset[int]  # ids of its tables' actions


@dataclass(frozen=True)
class Array:
    """An indexed counter, meter, register (of `width` bits) or value set (of `size` members over `keys`)."""

    id: int
    name: str
    size: int
    width: int = 0
    keys: tuple[Field, ...] = ()
    by_bytes: bool = False


@dataclass(frozen=True)
class Digest:
    """A digest: the widths of its fields, and the kind of its data."""

    id: int
    name: str
    widths: tuple[int, ...]
    kind: str  # struct, tuple or bitstring


@dataclass(frozen=True)
class Header:
    """A controller header, packet_in or packet_out."""

    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return (sum(field.width for field in self.fields) + 7) // 8


def _known(fields: Iterable[Field]) -> str:
    listed = ", ".join(f"{field.id} ({field.name})" for field in fields)
    return f"it has {listed}" if listed else "it has none"


def _field(message: Any, where: str, kind: str = "") -> Field:
    if not message.bitwidth and message.type_name.name:
        raise invalid(
            f"{where}: {message.name!r} has type {message.type_name.name!r}, translated to a string"
        )
    padding = "@padding" in message.annotations or message.name.startswith("_pad")
    return Field(message.id, message.name, message.bitwidth or _ERROR_BITS, kind, padding)


def _key(message: Any, where: str) -> Field:
    kind = _KINDS.get(message.match_type)
    if kind is None:
        raise invalid(f"{where}: key {message.name!r} has match type {message.other_match_type or 'none'!r}")
    return _field(message, where, kind)


def _bits(spec: Any, where: str) -> int:
    """Return the width of a P4DataTypeSpec of one value."""
    match spec.WhichOneof("type_spec"):
        case "bitstring" if spec.bitstring.WhichOneof("type_spec") in ("bit", "int"):
            bits = spec.bitstring.bit if spec.bitstring.HasField("bit") else spec.bitstring.int
            return int(bits.bitwidth)
        case "bool":
            return 1
        case other:
            raise invalid(f"{where}: values of type {other} are not supported")


class P4Info:
    """P4Info by id. Raises Refused (INVALID_ARGUMENT) if it is inconsistent or uses unsupported features."""

    def __init__(self, message: Any) -> None:
        self.actions = {
            a.preamble.id: Action(
                a.preamble.id,
                a.preamble.name,
                tuple(_field(p, f"action {a.preamble.name}") for p in a.params),
            )
            for a in message.actions
        }
        self.action_named = {action.name: action for action in self.actions.values()}
        profile_names = {p.preamble.id: p.preamble.name for p in message.action_profiles}
        direct_counters = {c.preamble.id: c.preamble.name for c in message.direct_counters}
        direct_meters = {m.preamble.id: m.preamble.name for m in message.direct_meters}
        self.tables = {
            t.preamble.id: self._table(t, profile_names, direct_counters, direct_meters)
            for t in message.tables
        }
        self.profiles = {p.preamble.id: self._profile(p) for p in message.action_profiles}
        self.counters = {
            c.preamble.id: Array(c.preamble.id, c.preamble.name, c.size) for c in message.counters
        }
        self.meters = {
            m.preamble.id: Array(
                m.preamble.id, m.preamble.name, m.size, by_bytes=m.spec.unit == p4i.MeterSpec.BYTES
            )
            for m in message.meters
        }
        self.registers = {
            r.preamble.id: Array(
                r.preamble.id, r.preamble.name, r.size, _bits(r.type_spec, f"register {r.preamble.name}")
            )
            for r in message.registers
        }
        self.value_sets = {
            v.preamble.id: Array(
                v.preamble.id,
                v.preamble.name,
                v.size,
                keys=tuple(_key(k, f"value set {v.preamble.name}") for k in v.match),
            )
            for v in message.value_sets
        }
        self.digests = {d.preamble.id: self._digest(d, message.type_info) for d in message.digests}
        self.digest_named = {digest.name: digest for digest in self.digests.values()}
        headers = {
            h.preamble.name: Header(tuple(_field(f, f"header {h.preamble.name}") for f in h.metadata))
            for h in message.controller_packet_metadata
        }
        self.packet_in = headers.get("packet_in")
        self.packet_out = headers.get("packet_out")
        for extern in message.externs:
            raise invalid(f"extern type {extern.extern_type_name!r} is not supported")

    def _table(
        self, t: Any, profiles: dict[int, str], counters: dict[int, str], meters: dict[int, str]
    ) -> Table:
        name = t.preamble.name
        for ref in t.action_refs:
            if ref.id not in self.actions:
                raise invalid(f"table {name}: action {ref.id:#x} is not in P4Info")
        if t.implementation_id and t.implementation_id not in profiles:
            raise invalid(f"table {name}: action profile {t.implementation_id:#x} is not in P4Info")
        for id_ in t.direct_resource_ids:
            if id_ not in counters and id_ not in meters:
                raise invalid(f"table {name}: direct resource {id_:#x} is not in P4Info")
        return Table(
            id=t.preamble.id,
            name=name,
            keys=tuple(_key(k, f"table {name}") for k in t.match_fields),
            actions={ref.id: ref.scope for ref in t.action_refs},
            size=t.size,
            is_const=t.is_const_table,
            const_default=bool(t.const_default_action_id),
            profile=profiles.get(t.implementation_id),
            direct_counter=next((counters[i] for i in t.direct_resource_ids if i in counters), None),
            direct_meter=next((meters[i] for i in t.direct_resource_ids if i in meters), None),
            idle_timeout=bool(t.idle_timeout_behavior),
        )

    def _profile(self, p: Any) -> Profile:
        users = [table for table in self.tables.values() if table.id in p.table_ids]
        return Profile(
            id=p.preamble.id,
            name=p.preamble.name,
            with_selector=p.with_selector,
            size=p.size,
            max_group_size=p.max_group_size,
            weights_disallowed=p.weights_disallowed,
            sum_of_members=p.HasField("sum_of_members"),
            max_member_weight=p.sum_of_members.max_member_weight,
            actions=frozenset(id_ for table in users for id_ in table.actions),
        )

    @staticmethod
    def _digest(d: Any, types: Any) -> Digest:
        where = f"digest {d.preamble.name}"
        kind = d.type_spec.WhichOneof("type_spec")
        match kind:
            case "struct":
                specs = [m.type_spec for m in types.structs[d.type_spec.struct.name].members]
            case "tuple":
                specs = list(d.type_spec.tuple.members)
            case _:
                specs = [d.type_spec]
        return Digest(d.preamble.id, d.preamble.name, tuple(_bits(s, where) for s in specs), kind)

    def table(self, id_: int) -> Table:
        """Return a table. Raises Refused if P4Info has none with that id."""
        try:
            return self.tables[id_]
        except KeyError:
            raise invalid(f"no table has id {id_:#x}") from None

    def action(self, id_: int) -> Action:
        """Return an action. Raises Refused if P4Info has none with that id."""
        try:
            return self.actions[id_]
        except KeyError:
            raise invalid(f"no action has id {id_:#x}") from None
