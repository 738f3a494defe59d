"""Reads BMv2 JSON (version 2.x, as p4c-bm2-ss writes it for v1model) into a typed program.

`load_program` resolves names, and refuses unknown constructs by name and source location (`Unsupported`).
Nothing here depends on eBPF.

BMv2's docs/JSON_format.md defines the format. Where it is silent, the sources of simple_switch 1.15 decide.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from machine.errors import BadInput
from softswitch.compiler.program import (
    BOOLEAN_OPS,
    DATA_OPS,
    Action,
    Advance,
    Boolean,
    Calculation,
    Call,
    Checksum,
    Conditional,
    Constant,
    Counter,
    DirectCall,
    Element,
    ElementField,
    Entry,
    Expr,
    Extract,
    FieldRef,
    FieldType,
    Header,
    HeaderRef,
    HeaderType,
    Key,
    LastField,
    LearnList,
    Lookahead,
    Meter,
    Node,
    Op,
    Param,
    ParserOp,
    ParseState,
    Pipeline,
    Primitive,
    Profile,
    Program,
    Register,
    RegisterCell,
    SetField,
    Stack,
    StackRef,
    Table,
    Transition,
    Union,
    UnionRef,
    Unsupported,
    ValueSet,
    Verify,
)


def _number(text: str) -> int:
    return -int(text[1:], 16) if text.startswith("-") else int(text, 16)


def _within(value: Any, most: int, what: str) -> int:
    """Return a size or width from the JSON as a number. Raises BadInput if it is not in 0..most."""
    number = int(value)
    if not 0 <= number <= most:
        raise BadInput(f"the program's JSON is damaged: {what} is {number}, not in 0..{most}")
    return number


def _members(node: dict[str, Any], numbers: list[int], names: dict[int, str]) -> tuple[str, ...]:
    """Return the names of a stack's or union's members, which all differ."""
    size = node.get("size", len(numbers))
    if len(set(numbers)) != len(numbers) or size != len(numbers):
        raise BadInput(
            f"the program's JSON is damaged: {node['name']} has members {numbers}, not {size} different ones"
        )
    return tuple(names[i] for i in numbers)


def _width(value: Any) -> int:
    return _within(value, 1 << 16, "a width in bits")


def _size(value: Any) -> int:
    return _within(value, 1 << 32, "a size")


def _where(node: Mapping[str, Any]) -> str:
    info = node.get("source_info")
    if not isinstance(info, dict):
        return ""
    fragment = str(info.get("source_fragment", "")).strip().replace("\n", " ")
    return f"{info.get('filename', '?')}({info.get('line', '?')}): {fragment}"


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.types: dict[str, HeaderType] = {}
        self.headers: dict[str, Header] = {}
        self.stacks: dict[str, Stack] = {}
        self.unions: dict[str, Union] = {}
        self.union_stacks: dict[str, Stack] = {}
        self.union_members: dict[str, list[str]] = {}  # of a union stack, as P4 names them
        self.where = ""

    def refuse(self, construct: str) -> Unsupported:
        place = f" at {self.where}" if self.where else ""
        return Unsupported(f"softswitch cannot run {construct}{place}")

    # values

    def field_ref(self, value: Any) -> FieldRef:
        header, member = value
        if header not in self.headers:
            raise self.refuse(f"a reference to unknown header {header!r}")
        known = self.headers[header].type.fields
        if member != "$valid$" and all(f.name != member for f in known):
            raise self.refuse(f"a reference to unknown field {header}.{member}")
        return FieldRef(header, member)

    def expr(self, node: Any) -> Expr:
        kind, value = node["type"], node.get("value")
        match kind:
            case "field":
                if isinstance(value[0], dict):  # a stack element by run-time index, in p4c's JSON
                    element = self.operator(value[0])
                    assert isinstance(element, Element)
                    return ElementField(element, value[1])
                return self.field_ref(value)
            case "hexstr":
                return Constant(_number(value))
            case "bool":
                return Boolean(bool(value))
            case "local" | "runtime_data":
                return Param(int(value))
            case "header":
                return HeaderRef(value)
            case "header_stack":
                return StackRef(value)
            case "header_union":
                return UnionRef(value)
            case "stack_field":
                stack, member = value
                fields = self.headers[self.stacks[stack].elements[0]].type.fields
                if member == "last" and all(f.name != member for f in fields):  # the element itself
                    return Element(stack, Op("last_stack_index", (StackRef(stack),)))
                return LastField(stack, member)
            case "lookahead":
                return Lookahead(*map(_width, value))
            case "register":
                return RegisterCell(value[0], self.expr(value[1]))
            case "expression":
                return self.operator(value) if "op" in value else self.expr(value)
        raise self.refuse(f"a value of type {kind!r}")

    def operator(self, node: Any) -> Expr:
        op = node["op"]
        if op in ("dereference_header_stack", "dereference_stack"):
            stack = self.expr(node["left"])
            assert isinstance(stack, StackRef)
            return Element(stack.name, self.expr(node["right"]))
        if op == "access_field":
            header = self.expr(node["left"])
            if isinstance(header, Element):
                kind = self.headers[self.stacks[header.stack].elements[0]].type
                return ElementField(header, self._member(kind, node["right"]))
            assert isinstance(header, HeaderRef)
            return FieldRef(header.name, self._member(self.headers[header.name].type, node["right"]))
        if op == "dereference_union_stack":
            index = self.expr(node["right"])
            stack = node["left"]["value"]
            if not isinstance(index, Constant) or index.value >= len(self.union_stacks[stack].elements):
                raise self.refuse(f"an index of union stack {stack!r} that is not constant")
            return UnionRef(self.union_stacks[stack].elements[index.value])
        if op == "access_union_header":
            union = self.expr(node["left"])
            if not isinstance(union, UnionRef):
                raise self.refuse("a stack of header unions")
            return HeaderRef(self.unions[union.name].members[int(node["right"])])
        if op not in BOOLEAN_OPS and op not in DATA_OPS:
            raise self.refuse(f"the operator {op!r}")
        args = [self.expr(node[k]) for k in ("cond", "left", "right") if node.get(k) is not None]
        return Op(op, tuple(args))

    @staticmethod
    def _member(kind: HeaderType, index: int) -> str:
        # BMv2 appends the hidden validity field to each header type.
        return kind.fields[index].name if index < len(kind.fields) else "$valid$"

    def argument(self, node: Any) -> Any:
        kind, value = node["type"], node.get("value")
        if kind in ("register_array", "counter_array", "meter_array", "calculation", "string"):
            return (kind, value)
        if kind == "parameters_vector":
            return tuple(self.expr(v) for v in value)
        if kind in ("extern", "header_union_stack", "field_list"):
            raise self.refuse(f"an argument of type {kind!r} ({value})")
        return self.expr(node)

    def primitive(self, node: Any) -> Primitive:
        self.where = _where(node)
        made = Primitive(node["op"], tuple(self.argument(p) for p in node["parameters"]), self.where)
        self.where = ""
        return made

    # declarations

    def read_types(self) -> None:
        for node in self.root["header_types"]:
            fields = []
            for item in node["fields"]:
                name, bits, *flags = item
                varbit = bits == "*"
                flags += [False, False]
                fields.append(
                    FieldType(name, 0 if varbit else _width(bits), bool(flags[0]), bool(flags[1]), varbit)
                )
            if node.get("length_exp") is not None:
                raise Unsupported(f"softswitch cannot run header {node['name']}: a P4_14 length expression")
            longest = (
                None if node.get("max_length") is None else _within(node["max_length"], 1 << 16, "max_length")
            )
            self.types[node["name"]] = HeaderType(node["name"], tuple(fields), longest)

    def read_headers(self) -> None:
        by_id: dict[int, str] = {}
        for node in self.root["headers"]:
            name = node["name"]
            by_id[node["id"]] = name
            self.headers[name] = Header(name, self.types[node["header_type"]], bool(node["metadata"]))
        for node in self.root.get("header_stacks", []):
            self.stacks[node["name"]] = Stack(node["name"], _members(node, node["header_ids"], by_id))
        for node in self.root.get("header_unions", []):
            self.unions[node["name"]] = Union(node["name"], _members(node, node["header_ids"], by_id))
        of_type = {
            t["name"]: [name for name, _ in t["headers"]] for t in self.root.get("header_union_types", [])
        }
        unions = {node["id"]: node["name"] for node in self.root.get("header_unions", [])}
        for node in self.root.get("header_union_stacks", []):
            elements = _members(node, node["header_union_ids"], unions)
            self.union_stacks[node["name"]] = Stack(node["name"], elements)
            self.union_members[node["name"]] = of_type[node["union_type"]]
        for node in self.root.get("extern_instances", []):
            raise Unsupported(f"softswitch cannot run extern {node['name']!r} of type {node.get('type')!r}")

    def bits_of(self, expr: Expr) -> int:
        match expr:
            case FieldRef(header, member):
                if member == "$valid$":
                    return 1
                return next(f.bits for f in self.headers[header].type.fields if f.name == member)
            case LastField(stack, member):
                return self.bits_of(FieldRef(self.stacks[stack].elements[0], member))
            case Lookahead(_, bits):
                return bits
        raise self.refuse(f"a parser key {expr}")

    def parser_op(self, node: Any, state: str) -> ParserOp:
        self.where = _where(node) or f"parser state {state}"
        op, params = node["op"], node["parameters"]
        if op in ("extract", "extract_VL"):
            target = params[0]
            length = self.expr(params[1]) if op == "extract_VL" else None
            if target["type"] == "union_stack":
                stack, member = target["value"]
                return Extract("union_stack", stack, length, self.union_members[stack].index(member))
            if not isinstance(target["value"], str):
                raise self.refuse("an extraction into a stack element by run-time index")
            if target["type"] not in ("regular", "stack"):
                raise self.refuse(f"an extraction into a {target['type']}")
            return Extract(target["type"], target["value"], length)
        if op == "set":
            return SetField(self.expr(params[0]), self.expr(params[1]))
        if op == "verify":
            return Verify(self.expr(params[0]), self.expr(params[1]))
        if op == "advance":
            return Advance(self.expr(params[0]))
        if op == "shift":
            return Advance(Constant(8 * int(params[0])))
        if op == "primitive":
            return Call(self.primitive(params[0]))
        raise self.refuse(f"the parser operation {op!r}")

    def parser(self) -> tuple[str | None, dict[str, ParseState]]:
        parsers = self.root["parsers"]
        if not parsers:
            return None, {}
        if len(parsers) > 1:
            raise Unsupported("softswitch cannot run several parsers in one program")
        states: dict[str, ParseState] = {}
        for node in parsers[0]["parse_states"]:
            name = node["name"]
            key = tuple(self.expr(k) for k in node["transition_key"])
            transitions = []
            for item in node["transitions"]:
                kind, target = item["type"], item["next_state"]
                mask = None if item.get("mask") is None else _number(item["mask"])
                if kind == "default":
                    transitions.append(Transition(target))
                elif kind == "parse_vset":
                    transitions.append(Transition(target, mask=mask, value_set=item["value"]))
                else:
                    transitions.append(Transition(target, _number(item["value"]), mask))
            # P4_14-era files have no "type" and call the default value "default"; p4c always writes it.
            states[name] = ParseState(
                name,
                tuple(self.parser_op(op, name) for op in node["parser_ops"]),
                key,
                tuple(self.bits_of(k) for k in key),
                tuple(transitions),
            )
            self.where = ""
        return parsers[0]["init_state"], states

    def actions(self) -> dict[int, Action]:
        return {
            int(node["id"]): Action(
                int(node["id"]),
                node["name"],
                tuple((p["name"], _width(p["bitwidth"])) for p in node["runtime_data"]),
                tuple(self.primitive(p) for p in node["primitives"]),
            )
            for node in self.root["actions"]
        }

    def table(self, node: Any, actions: Mapping[int, Action]) -> Table:
        self.where = _where(node) or f"table {node['name']}"
        keys = []
        for item in node["key"]:
            kind = item["match_type"]
            target = item["target"]
            ref = FieldRef(target, "$valid$") if kind == "valid" else self.field_ref(target)
            mask = None if item.get("mask") is None else _number(item["mask"])
            name = item.get("name") or ".".join([ref.header, ref.field])
            if kind not in ("exact", "lpm", "ternary", "range", "valid"):
                raise self.refuse(f"the match kind {kind!r} of key {name}")
            keys.append(Key(name, kind, ref, self.bits_of(ref), mask))
        own: dict[str, Action] = {}
        for number in node["action_ids"]:
            self.add_action(own, actions[number])
        names = [actions[number].name for number in node["action_ids"]]
        if node.get("actions", names) != names:  # BMv2 takes what follows by these names
            raise ValueError(
                f"table {node['name']} calls its actions {node['actions']}, and they are {names}"
            )
        following = node["next_tables"]
        by_outcome = "__HIT__" in following or "__MISS__" in following
        default = node.get("default_entry")
        constant = bool(default and (default.get("action_entry_const") or default.get("action_const")))
        if default is not None and not constant:
            self.add_action(own, actions[default["action_id"]])
        entries = tuple(self.entry(e, own, actions) for e in node.get("entries", []))
        return Table(
            name=node["name"],
            id=node["id"],
            kind=node["match_type"],
            profile=node.get("action_profile"),
            size=max(1, _size(node.get("max_size", 1024))),
            keys=tuple(keys),
            actions=own,
            next_hit=following.get("__HIT__"),
            next_miss=following.get("__MISS__"),
            by_outcome=by_outcome,
            next_by_action={k: v for k, v in following.items() if not k.startswith("__")},
            default_next=node.get("base_default_next"),
            default_action=None if default is None else actions[default["action_id"]],
            default_args=() if default is None else tuple(_number(d) for d in default.get("action_data", [])),
            default_const=constant,
            entries=entries,
            direct_counter=bool(node.get("with_counters")),
            direct_meter=node.get("direct_meters"),
        )

    def add_action(self, own: dict[str, Action], action: Action) -> None:
        """Add an action by name. p4c's copies of one action may differ only between tables."""
        known = own.setdefault(action.name, action)
        if known.id != action.id and (known.params, known.primitives) != (action.params, action.primitives):
            raise self.refuse(f"two different actions named {action.name!r} in one table")

    def entry(self, node: Any, own: dict[str, Action], actions: Mapping[int, Action]) -> Entry:
        match: list[tuple[str, int, int]] = []
        for item in node["match_key"]:
            kind = item["match_type"]
            if kind == "range":
                match.append((kind, _number(item["start"]), _number(item["end"])))
            elif kind == "valid":
                match.append((kind, int(item["key"]), 0))
            else:
                extra = _number(item["mask"]) if kind == "ternary" else int(item.get("prefix_length", 0))
                match.append((kind, _number(item["key"]), extra))
        action = actions[node["action_entry"]["action_id"]]
        self.add_action(own, action)
        args = tuple(_number(a) for a in node["action_entry"]["action_data"])
        return Entry(tuple(match), action.name, args, int(node.get("priority", 0)))

    def pipeline(self, name: str, actions: Mapping[int, Action]) -> Pipeline:
        node = next((p for p in self.root["pipelines"] if p["name"] == name), None)
        if node is None:
            raise BadInput(f"the program has no pipeline {name!r}: it was not compiled for v1model")
        nodes: dict[str, Node] = {t["name"]: self.table(t, actions) for t in node["tables"]}
        for item in node["conditionals"]:
            self.where = _where(item)
            nodes[item["name"]] = Conditional(
                item["name"], self.expr(item["expression"]), item.get("true_next"), item.get("false_next")
            )
        for item in node.get("action_calls", []):
            nodes[item["name"]] = DirectCall(item["name"], actions[item["action_id"]], item.get("next_node"))
        profiles = {}
        for item in node.get("action_profiles", []):
            selector = item.get("selector")
            inputs = tuple(self.field_ref(i["value"]) for i in selector["input"]) if selector else ()
            algorithm = selector["algo"] if selector else None
            profiles[item["name"]] = Profile(item["name"], max(1, _size(item["max_size"])), algorithm, inputs)
        self.where = ""
        return Pipeline(name, node.get("init_table"), nodes, profiles)

    def calculation(self, node: Any) -> Calculation:
        self.where = _where(node) or f"calculation {node['name']}"
        inputs: list[FieldRef | HeaderRef | tuple[int, int]] = []
        payload = False
        for item in node["input"]:
            match item["type"]:
                case "field":
                    inputs.append(self.field_ref(item["value"]))
                case "header":
                    inputs.append(HeaderRef(item["value"]))
                case "hexstr":
                    inputs.append((_number(item["value"]), _width(item["bitwidth"])))
                case "payload":
                    payload = True
                case other:
                    raise self.refuse(f"a calculation over a {other}")
        self.where = ""
        return Calculation(node["name"], node["algo"], tuple(inputs), payload)

    def checksum(self, node: Any) -> Checksum:
        self.where = _where(node)
        if node["type"] != "generic":
            raise self.refuse(f"a checksum of type {node['type']!r}")
        condition = node.get("if_cond")
        return Checksum(
            node["name"],
            self.field_ref(node["target"]),
            node["calculation"],
            bool(node.get("verify", True)),
            bool(node.get("update", True)),
            None if condition is None else self.expr(condition),
        )

    def program(self) -> Program:
        self.read_types()
        self.read_headers()
        start, states = self.parser()
        actions = self.actions()
        root = self.root
        deparsers = root["deparsers"]
        meters = {
            m["name"]: Meter(
                m["name"],
                _size(m.get("size", 0)),
                m["type"],
                m.get("binding") if m.get("is_direct") else None,
                self.field_ref(m["result_target"]) if m.get("is_direct") else None,
            )
            for m in root["meter_arrays"]
        }
        counters = {
            c["name"]: Counter(
                c["name"], _size(c.get("size", 0)), c.get("binding") if c.get("is_direct") else None
            )
            for c in root["counter_arrays"]
        }
        lists: dict[int, tuple[FieldRef, ...]] = {}
        for node in root.get("field_lists", []):
            lists[int(node["id"])] = tuple(
                self.field_ref(e["value"]) for e in node["elements"] if e["type"] == "field"
            )
        return Program(
            headers=self.headers,
            stacks=self.stacks,
            unions=self.unions,
            union_stacks=self.union_stacks,
            errors={name: int(value) for name, value in root.get("errors", [])},
            parser_start=start,
            parse_states=states,
            value_sets={
                v["name"]: ValueSet(
                    v["name"], _size(v.get("max_size") or 64), _width(v["compressed_bitwidth"])
                )
                for v in root.get("parse_vsets", [])
            },
            deparse_order=tuple(deparsers[0]["order"]) if deparsers else (),
            deparse_calls=tuple(self.primitive(p) for d in deparsers for p in d.get("primitives", [])),
            actions=tuple(actions.values()),
            ingress=self.pipeline("ingress", actions),
            egress=self.pipeline("egress", actions),
            calculations={c["name"]: self.calculation(c) for c in root["calculations"]},
            checksums=tuple(self.checksum(c) for c in root["checksums"]),
            registers={
                r["name"]: Register(r["name"], _size(r["size"]), _width(r["bitwidth"]))
                for r in root["register_arrays"]
            },
            counters=counters,
            meters=meters,
            learn_lists={
                int(n["id"]): LearnList(int(n["id"]), n["name"], tuple(self.expr(e) for e in n["elements"]))
                for n in root.get("learn_lists", [])
            },
            field_lists=lists,
            aliases={name: FieldRef(*target) for name, target in root.get("field_aliases", [])},
        )


def load_program(json_bytes: bytes) -> Program:
    """Read p4c's BMv2 JSON for v1model.

    Raises BadInput if it is not such a file. Raises Unsupported for what softswitch cannot run, naming the
    construct and its place in the P4 source.
    """
    try:
        root = json.loads(json_bytes, object_hook=_named)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the program is not BMv2 JSON: {error}; compile it with p4c-bm2-ss") from error
    if not isinstance(root, dict) or "pipelines" not in root or "header_types" not in root:
        raise BadInput("the program is not BMv2 JSON (no pipelines); compile it with p4c-bm2-ss")
    with refusing_damage():
        version = root.get("__meta__", {}).get("version", [2, 0])
        if version[0] != 2:
            raise Unsupported(f"softswitch cannot run version {version} of BMv2's JSON, only 2.x")
        return _Reader(root).program()


def _named(node: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the JSON. BMv2 takes a number for a name as well, and finds nothing by it."""
    if not isinstance(name := node.get("name", ""), str):
        raise ValueError(f"a name is {json.dumps(name)}, not text")
    return node


@contextlib.contextmanager
def refusing_damage() -> Iterator[None]:
    """Raise BadInput for what reading a damaged program raises. Only p4c's own output is sure to fit."""
    try:
        yield
    except (
        *(KeyError, TypeError, ValueError, IndexError, AssertionError),
        *(AttributeError, RecursionError, StopIteration, ArithmeticError, MemoryError),
    ) as error:
        raise BadInput(f"the program's JSON is damaged: {type(error).__name__}: {error}") from error


__all__ = ["Program", "Unsupported", "load_program", "refusing_damage"]
