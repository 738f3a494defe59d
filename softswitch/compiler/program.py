"""A v1model program as typed, frozen values. `softswitch.compiler.ir` creates it from p4c's BMv2 JSON.

Mappings keep the JSON's order. Names are those of the JSON: the fully qualified names of P4Info.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from machine.errors import EntrainError


class Unsupported(EntrainError):
    """The program uses a construct that softswitch cannot run."""


# --- values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldType:
    """One field of a header type. A varbit field has `bits` 0 and `varbit` true."""

    name: str
    bits: int
    signed: bool = False
    saturating: bool = False
    varbit: bool = False


@dataclass(frozen=True)
class HeaderType:
    """Fields in wire order. `max_bytes` bounds a header with a varbit field."""

    name: str
    fields: tuple[FieldType, ...]
    max_bytes: int | None = None

    @property
    def bits(self) -> int:
        """Width of the fixed fields."""
        return sum(f.bits for f in self.fields)

    @property
    def varbit(self) -> int | None:
        """Index of the varbit field."""
        return next((i for i, f in enumerate(self.fields) if f.varbit), None)


@dataclass(frozen=True)
class Header:
    """A header or metadata instance."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True)
class Stack:
    """A header stack: the names of its elements in order."""

    name: str
    elements: tuple[str, ...]


@dataclass(frozen=True)
class Union:
    """A header union: the names of its members."""

    name: str
    members: tuple[str, ...]


# --- expressions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldRef:
    """Field `field` of header instance `header`; `$valid$` is its validity."""

    header: str
    field: str


@dataclass(frozen=True)
class LastField:
    """A field of a stack's last valid element."""

    stack: str
    field: str


@dataclass(frozen=True)
class Constant:
    value: int


@dataclass(frozen=True)
class Boolean:
    value: bool


@dataclass(frozen=True)
class Param:
    """Runtime data of the enclosing action."""

    index: int


@dataclass(frozen=True)
class HeaderRef:
    name: str


@dataclass(frozen=True)
class UnionRef:
    name: str


@dataclass(frozen=True)
class StackRef:
    name: str


@dataclass(frozen=True)
class Element:
    """A stack element by run-time index."""

    stack: str
    index: Expr


@dataclass(frozen=True)
class ElementField:
    """A field of a stack element by run-time index."""

    element: Element
    field: str


@dataclass(frozen=True)
class RegisterCell:
    """A register read inside an expression."""

    register: str
    index: Expr


@dataclass(frozen=True)
class Lookahead:
    """Bits of the packet that are not yet extracted."""

    offset: int
    bits: int


@dataclass(frozen=True)
class Op:
    """An operator of BMv2's expressions. Unary ones have one argument; `?` has condition, then, else."""

    op: str
    args: tuple[Expr, ...]


Expr = (
    FieldRef
    | LastField
    | Constant
    | Boolean
    | Param
    | HeaderRef
    | UnionRef
    | StackRef
    | Element
    | ElementField
    | RegisterCell
    | Lookahead
    | Op
)

BOOLEAN_OPS = frozenset(["==", "!=", ">", "<", ">=", "<=", "and", "or", "not", "valid", "valid_union", "d2b"])
DATA_OPS = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "%",
        "<<",
        ">>",
        "&",
        "|",
        "^",
        "~",
        "?",
        "two_comp_mod",
        "usat_cast",
        "sat_cast",
        "b2d",
        "last_stack_index",
        "size_stack",
    ]
)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything in it."""
    yield expr
    match expr:
        case Op(_, args):
            for arg in args:
                yield from walk(arg)
        case Element(_, index) | RegisterCell(_, index):
            yield from walk(index)
        case ElementField(element, _):
            yield from walk(element)


# --- statements ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Primitive:
    op: str
    args: tuple[Any, ...]  # Expr, (kind, name) of another object, or a tuple of Expr (parameters_vector)
    source: str = ""


@dataclass(frozen=True)
class Action:
    id: int
    name: str
    params: tuple[tuple[str, int], ...]  # name, bits
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True)
class Extract:
    """Extract into a header (`regular`) or the next element of a stack. `length` is the varbit's, in bits.

    In a stack of unions, extract into member number `member` of the next union.
    """

    kind: Literal["regular", "stack", "union_stack"]
    name: str
    length: Expr | None = None
    member: int = 0  # of the union


@dataclass(frozen=True)
class SetField:
    target: Expr
    source: Expr


@dataclass(frozen=True)
class Verify:
    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Advance:
    bits: Expr


@dataclass(frozen=True)
class Call:
    primitive: Primitive


ParserOp = Extract | SetField | Verify | Advance | Call


@dataclass(frozen=True)
class Transition:
    """`value`/`mask` compare the concatenated, byte-padded key; `value_set` names a parser value set."""

    next_state: str | None
    value: int | None = None
    mask: int | None = None
    value_set: str | None = None


@dataclass(frozen=True)
class ParseState:
    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    key_bits: tuple[int, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class Calculation:
    """A hash over fields, headers, constants ((value, bits)) and, last, the payload."""

    name: str
    algorithm: str
    inputs: tuple[FieldRef | HeaderRef | tuple[int, int], ...]
    payload: bool


@dataclass(frozen=True)
class Checksum:
    name: str
    target: FieldRef
    calculation: str
    verify: bool
    update: bool
    condition: Expr | None


# --- control ------------------------------------------------------------------------------------------------

MatchKind = Literal["exact", "lpm", "ternary", "range", "valid"]


@dataclass(frozen=True)
class Key:
    """One key of a table. `valid` keys match a header's validity (P4_14)."""

    name: str
    kind: MatchKind
    target: FieldRef
    bits: int
    mask: int | None = None


@dataclass(frozen=True)
class Entry:
    """A constant or initial entry. `match` has kind, value, and mask, prefix length or high of each key."""

    match: tuple[tuple[str, int, int], ...]
    action: str
    args: tuple[int, ...]
    priority: int


@dataclass(frozen=True)
class Table:
    name: str
    id: int
    kind: Literal["exact", "lpm", "ternary", "range"]
    profile: str | None
    size: int
    keys: tuple[Key, ...]
    actions: Mapping[str, Action]
    next_hit: str | None
    next_miss: str | None
    by_outcome: bool  # whether next_hit and next_miss apply; otherwise next_by_action
    next_by_action: Mapping[str, str | None]
    default_next: str | None
    default_action: Action | None
    default_args: tuple[int, ...]
    default_const: bool
    entries: tuple[Entry, ...]
    direct_counter: bool
    direct_meter: str | None


@dataclass(frozen=True)
class Conditional:
    name: str
    condition: Expr
    true_next: str | None
    false_next: str | None


@dataclass(frozen=True)
class DirectCall:
    name: str
    action: Action
    next: str | None


Node = Table | Conditional | DirectCall


@dataclass(frozen=True)
class Profile:
    """An action profile. With `algorithm` it is a selector over `inputs`."""

    name: str
    size: int
    algorithm: str | None
    inputs: tuple[FieldRef, ...]


@dataclass(frozen=True)
class Pipeline:
    name: str
    first: str | None
    nodes: Mapping[str, Node]
    profiles: Mapping[str, Profile]


@dataclass(frozen=True)
class Register:
    name: str
    size: int
    bits: int


@dataclass(frozen=True)
class Counter:
    name: str
    size: int
    table: str | None  # a direct counter's table


@dataclass(frozen=True)
class Meter:
    name: str
    size: int
    unit: Literal["bytes", "packets"]
    table: str | None
    target: FieldRef | None


@dataclass(frozen=True)
class ValueSet:
    name: str
    size: int
    bits: int


@dataclass(frozen=True)
class LearnList:
    id: int
    name: str
    elements: tuple[Expr, ...]


@dataclass(frozen=True)
class Program:
    """A whole v1model program. Mappings keep the JSON's order."""

    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    unions: Mapping[str, Union]
    union_stacks: Mapping[str, Stack]  # the elements are unions
    errors: Mapping[str, int]
    parser_start: str | None
    parse_states: Mapping[str, ParseState]
    value_sets: Mapping[str, ValueSet]
    deparse_order: tuple[str, ...]
    deparse_calls: tuple[Primitive, ...]
    actions: tuple[Action, ...]
    ingress: Pipeline
    egress: Pipeline
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    registers: Mapping[str, Register]
    counters: Mapping[str, Counter]
    meters: Mapping[str, Meter]
    learn_lists: Mapping[int, LearnList]
    field_lists: Mapping[int, tuple[FieldRef, ...]]
    aliases: Mapping[str, FieldRef]

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """All tables of both pipelines, including those that p4c generated for statements."""
        return {
            node.name: node
            for pipeline in (self.ingress, self.egress)
            for node in pipeline.nodes.values()
            if isinstance(node, Table)
        }

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return {**self.ingress.profiles, **self.egress.profiles}

    def field_type(self, ref: FieldRef) -> FieldType:
        """Return the type of a field. `$valid$` is one bit."""
        if ref.field == "$valid$":
            return FieldType("$valid$", 1)
        return next(f for f in self.headers[ref.header].type.fields if f.name == ref.field)

    def standard(self, name: str) -> FieldRef | None:
        """Return the field that simple_switch knows as `name` (`queueing_metadata.enq_qdepth`), if any."""
        if name in self.aliases:
            return self.aliases[name]
        header, _, member = name.partition(".")
        if header in self.headers and any(f.name == member for f in self.headers[header].type.fields):
            return FieldRef(header, member)
        return None


def fields_read(program: Program) -> set[FieldRef]:
    """Return the fields that the program reads. The others need not be set."""
    found: set[FieldRef] = set()

    def look(value: object) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        elif value is not None and not isinstance(value, str | int | bool):
            found.update(e for e in walk(value) if isinstance(e, FieldRef))  # type: ignore[arg-type]

    for action in program.actions:
        for p in action.primitives:
            # the first argument of an assignment is only written, except where it is indexed
            look(p.args[1:] if p.op == "assign" and isinstance(p.args[0], FieldRef) else p.args)
    for state in program.parse_states.values():
        look(state.key)
        for op in state.ops:
            for name in ("length", "source", "condition", "error", "bits"):
                look(getattr(op, name, None))
            if hasattr(op, "primitive"):
                look(op.primitive.args)
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            look(getattr(node, "condition", None))
        for profile in pipeline.profiles.values():
            look(profile.inputs)
    for table in program.tables.values():
        look(tuple(k.target for k in table.keys))
    for calculation in program.calculations.values():
        look(tuple(i for i in calculation.inputs if isinstance(i, FieldRef)))
    for checksum in program.checksums:
        look(checksum.condition)
        look(checksum.target)
    for learn in program.learn_lists.values():
        look(learn.elements)
    for fields in program.field_lists.values():
        look(fields)
    return found
