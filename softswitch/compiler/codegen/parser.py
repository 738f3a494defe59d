"""Generates the parser: one label for each parser state *and offset in the packet*.

Until a varbit field is extracted, the compiler knows the offset. Each header is copied from a constant
offset, loops over header stacks unroll, and neither offset nor stack index costs run time. After a varbit the
offset is `st->offset`. It is kept in memory so that the verifier sees one state instead of many.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.compiler.codegen.actions import Actions
from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import hexadecimal, mask
from softswitch.compiler.layout import HeaderSlot, Layout, align, limbs
from softswitch.compiler.program import (
    Advance,
    Call,
    Constant,
    Expr,
    Extract,
    Lookahead,
    ParserOp,
    ParseState,
    Primitive,
    SetField,
    StackRef,
    Transition,
    Unsupported,
    Verify,
    walk,
)

_MOST_NODES = 512
_DEEPEST = 1024  # bytes of headers; packets with more are dropped and counted
_MOST_STEPS = 256  # visits of states that may recur at the same offset, bounded for the verifier
_WALK = (
    "\t{",
    "\t\tstruct parsing parsing = {.skb = skb, .st = st};",
    "\t\tbpf_loop(1024, parse_step, &parsing, 0);",
    "\t\tif (st->state != PARSE_DONE)",
    "\t\t\treturn -1;",
    "\t\terror = st->error;",
    "\t}",
)


@dataclass(frozen=True)
class _Node:
    state: str
    offset: int | None  # None: st->offset
    next: tuple[int, ...]  # elements already in each stack


class _TooMany(Exception):
    pass


class Parser:
    """Generates the function `parse`."""

    def __init__(self, layout: Layout, actions: Actions) -> None:
        self.layout = layout
        self.program = layout.program
        self.actions = actions
        self.expressions = Expressions(layout)
        self.nodes: dict[_Node, int] = {}
        self.todo: list[_Node] = []
        self.deepest = 0
        self.dynamic = False
        self.known = True  # whether offsets are tracked at all
        self.edges: dict[_Node, set[_Node]] = {}
        self.current = _Node("", 0, ())
        self.reorders = self._reorders()

    def error(self, name: str) -> int:
        return self.program.errors.get(name, 0x7FFFFFFF)

    def _reorders(self) -> bool:
        """Return whether deparsing an unchanged packet may yield different bytes."""
        order = {name: i for i, name in enumerate(self.program.deparse_order)}
        after: dict[str, set[str]] = {}
        edges: dict[str, list[str]] = {}
        for state in self.program.parse_states.values():
            names: list[str] = []
            for op in state.ops:
                if isinstance(op, Advance):
                    return True
                if isinstance(op, Extract):
                    if op.kind == "union_stack":
                        return True
                    if op.kind == "stack":
                        names += [op.name]
                    else:
                        names.append(op.name)
            edges[state.name] = names
        # Every extracted header must be emitted, in the same order: compare with all reachable successors.
        for state in self.program.parse_states.values():
            seen: set[str] = set()
            todo = [t.next_state for t in state.transitions if t.next_state]
            while todo:
                name = todo.pop()
                if name not in seen:
                    seen.add(name)
                    todo += [
                        t.next_state for t in self.program.parse_states[name].transitions if t.next_state
                    ]
            following = [n for name in seen for n in edges[name]]
            for i, name in enumerate(edges[state.name]):
                after.setdefault(name, set()).update(edges[state.name][i + 1 :], following)
        for name, later in after.items():
            stack = self.program.stacks.get(name)
            last = stack.elements[-1] if stack else name
            first = stack.elements if stack else (name,)
            if any(n not in order for n in first):
                return True
            for other in later:
                if other == name and stack:
                    continue
                head = self.program.stacks[other].elements[0] if other in self.program.stacks else other
                if order.get(head, -1) <= order[last]:
                    return True
        for stack in self.program.stacks.values():
            places = [order.get(e, -1) for e in stack.elements]
            if places != sorted(places):
                return True
        return False

    def function(self) -> str:
        """Return C for `int parse(struct __sk_buff *skb, struct state *st)`, which fills in st->phv."""
        start = self.program.parser_start
        zero = tuple(0 for _ in self.layout.stack_index)
        fixed: list[str] = []
        moving: list[str] = []
        if start is not None:
            try:
                fixed, moving = self._states(_Node(start, 0, zero))
            except _TooMany:
                # Too many paths through the parser: use one block per state, at any offset.
                self.nodes, self.todo, self.edges, self.known, self.dynamic = {}, [], {}, False, True
                fixed, moving = self._states(_Node(start, None, zero))
                fixed.insert(0, "\tst->offset = 0;")
        else:
            fixed = ["\tphv->parsed = 0;", "\tgoto done;"]
        parts = [self._step(moving)] if moving else []
        walk = ["moving:", *_WALK] if moving else []
        parse = [
            "INLINE int parse(struct __sk_buff *skb, struct state *st)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            "\tu32 error = 0, have = st->have, steps = 0;",
            "\tu8 *buffer = (u8 *)st->buffer;",
            *fixed,
            *walk,
            "done:",
            "\tif (error)",
            "\t\ttally(PARSER_ERROR);",
            f"\t{self._set_error()}",
            "\t(void)have, (void)buffer, (void)error, (void)steps;",
            "\treturn 0;",
            "deep: __attribute__((unused))",
            "\treturn -1;",
            "}",
        ]
        return "\n\n".join([*parts, "\n".join(parse)])

    @staticmethod
    def _step(states: list[str]) -> str:
        """Return C for one state after a varbit. With bpf_loop the verifier visits each state once."""
        return "\n".join(
            [
                "static long parse_step(u32 index, struct parsing *parsing)",
                "{",
                "\tstruct state *st = parsing->st;",
                "\tstruct __sk_buff *skb = parsing->skb;",
                "\tstruct phv *phv = &st->phv;",
                "\tu32 error = 0, have = st->have;",
                "\tu8 *buffer = (u8 *)st->buffer;",
                "\tswitch (st->state) {",
                *states,
                "\t}",
                "deep: __attribute__((unused))",
                "\tst->state = PARSE_DEEP;",
                "\treturn 1;",
                "done: __attribute__((unused))",
                "\tst->state = PARSE_DONE;",
                "\tst->error = error;",
                "\t(void)have, (void)buffer, (void)skb;",
                "\treturn 1;",
                "}",
            ]
        )

    def _states(self, start: _Node) -> tuple[list[str], list[str]]:
        """Return the states at known offsets, and those after a varbit."""
        self.current = start
        self.edges[start] = set()
        fixed = [f"\t{self._enter(start, inside=False)}"]
        moving: list[str] = []
        blocks: dict[_Node, list[str]] = {}
        while self.todo:
            node = self.todo.pop()
            self.edges[node] = set()
            blocks[node] = self._node(node)
        for node, (head, *rest) in blocks.items():
            if node.offset is None:
                moving += [head, *rest]
                continue
            fixed.append(head)
            if self._comes_back(node):
                fixed += [f"\tif (++steps > {_MOST_STEPS})", "\t\tgoto deep;"]
            fixed += rest
        return fixed, moving

    def _enter(self, node: _Node, *, inside: bool) -> str:
        """Return C that goes to a node. `inside` tells whether the current one is after a varbit, too."""
        label = self._label(node)
        if node.offset is not None:
            return f"goto state_{label};"
        return f"{{ st->state = {label}; {'return 0' if inside else 'goto moving'}; }}"

    def _comes_back(self, node: _Node) -> bool:
        """Return whether the parser can return to a state at the same offset."""
        seen: set[_Node] = set()
        todo = list(self.edges[node])
        while todo:
            following = todo.pop()
            if following not in seen:
                seen.add(following)
                todo += self.edges[following]
        return node in seen

    def _set_error(self) -> str:
        ref = self.program.standard("standard_metadata.parser_error")
        return self.expressions.store(ref, "error") if ref else ""

    @property
    def buffer_bytes(self) -> int:
        """Bytes to load from the packet, a power of two if offsets are dynamic."""
        if not self.dynamic:
            return align(max(self.deepest, 8), 8)
        return _DEEPEST

    def _label(self, node: _Node) -> int:
        if node not in self.nodes:
            if len(self.nodes) >= _MOST_NODES and self.known:
                raise _TooMany
            if len(self.nodes) >= _MOST_NODES:
                raise Unsupported(
                    f"softswitch cannot run a parser of more than {_MOST_NODES} unrolled states"
                )
            self.nodes[node] = len(self.nodes)
            self.todo.append(node)
        return self.nodes[node]

    def _node(self, node: _Node) -> list[str]:
        state = self.program.parse_states[node.state]
        self.current = node
        where = node.offset if node.offset is not None else "st->offset"
        number = self.nodes[node]
        label = f"state_{number}: __attribute__((unused))" if node.offset is not None else f"case {number}:"
        lines = [f"{label} /* at {where} */", "\t{"]
        offset: int | None = node.offset
        following = list(node.next)
        for op in state.ops:
            code, offset = self._op(op, offset, following)
            lines += [f"\t{line}" for line in code]
            if offset is not None and offset > _DEEPEST:
                return [*lines, "\tgoto deep;", "\t}"]
        lines += [f"\t{line}" for line in self._select(state, offset, tuple(following))]
        return [*lines, "\t}"]

    # --- operations ---

    def _fail(self, name: str, offset: int | None) -> str:
        return f"{{ phv->parsed = {self._place(offset)}; error = {self.error(name)}; goto done; }}"

    @staticmethod
    def _place(offset: int | None) -> str:
        return str(offset) if offset is not None else "st->offset"

    def _need(self, size: int, offset: int | None) -> list[str]:
        """Return C that checks for `size` more bytes (BMv2's check_enough_data_for_extract)."""
        if offset is not None:
            self.deepest = max(self.deepest, offset + size)
            return [f"if (have < {offset + size})", f"\t{self._fail('PacketTooShort', offset)}"]
        return [
            f"if (have < st->offset + {size})",
            f"\t{self._fail('PacketTooShort', offset)}",
            f"if (st->offset + {size} > {_DEEPEST})",
            "\tgoto deep;",
        ]

    def _base(self, offset: int | None) -> str:
        if offset is not None:
            return f"(buffer + {offset})" if offset else "buffer"
        return f"(buffer + (st->offset & {_DEEPEST - 1}))"

    def _op(self, op: ParserOp, offset: int | None, following: list[int]) -> tuple[list[str], int | None]:
        match op:
            case Extract():
                return self._extract(op, offset, following)
            case SetField(target, source):
                return self._set(target, source, offset), offset
            case Verify(condition, error):
                code = self.expressions.unsigned(error)
                test = self.expressions.boolean(condition)
                fail = f"{{ phv->parsed = {self._place(offset)}; error = {code}; goto done; }}"
                return [f"if (!{test})", f"\t{fail}"], offset
            case Advance(bits):
                return self._advance(bits, offset)
            case Call(primitive):
                self._shift(primitive, following)
                return self.actions.inline(primitive), offset
        raise Unsupported(f"softswitch cannot run parser operation {op}")

    def _shift(self, primitive: Primitive, following: list[int]) -> None:
        """Track, at compile time, how a primitive changes the number of elements in a stack."""
        names = list(self.layout.stack_index)
        match primitive.op, primitive.args:
            case ("push" | "pop" as op, (StackRef(name), Constant(count))):
                index = names.index(name)
                size = len(self.program.stacks[name].elements)
                moved = following[index] + (count if op == "push" else -count)
                following[index] = min(size, max(0, moved))
            case "assign_header_stack", (StackRef(target), StackRef(source)):
                following[names.index(target)] = following[names.index(source)]

    def _extract(self, op: Extract, offset: int | None, following: list[int]) -> tuple[list[str], int | None]:
        lines: list[str] = []
        if op.kind != "regular":
            index = self.layout.stack_index[op.name]
            if op.kind == "stack":
                elements = self.program.stacks[op.name].elements
            else:
                unions = self.program.union_stacks[op.name].elements
                elements = tuple(self.program.unions[u].members[op.member] for u in unions)
            if following[index] >= len(elements):
                return [f"if (1) {self._fail('StackOutOfBounds', offset)}"], offset
            slot = self.layout.slots[elements[following[index]]]
            following[index] += 1
            after = [f"phv->next[{index}] = {following[index]};"]
        else:
            slot = self.layout.slots[op.name]
            after = []
        marks = [*self.actions.mark_valid(slot), *after]
        if op.length is not None:
            return [*lines, *self._extract_varbit(op.length, slot, offset), *marks], None
        lines += self._need(slot.fixed, offset)
        if slot.varbit_room:
            raise Unsupported(
                f"softswitch cannot extract {slot.header.name} without the length of its varbit"
            )
        lines.append(f"copy_words({slot.base}, {self._base(offset)}, {align(slot.fixed, 8) // 8});")
        if offset is None:
            return [*lines, *marks, f"st->offset += {slot.fixed};"], None
        return [*lines, *marks], offset + slot.fixed

    def _extract_varbit(self, length: Expr, slot: HeaderSlot, offset: int | None) -> list[str]:
        self.dynamic = True
        most = slot.header.type.max_bytes or 0
        place = self._place(offset)
        rest = slot.fixed - slot.varbit_at
        # Boost's conversion to int saturates, and INT_MAX is not a multiple of 8.
        lines = [
            "{",
            f"\tu64 bits = {self.expressions.unsigned(length)};",
            f"\tif (bits % 8 || bits > 0x7fffffff) {self._fail('ParserInvalidArgument', offset)}",
            "\tu32 bytes = bits / 8;",
            f"\tif (have < {place} + {slot.fixed} + bytes) {self._fail('PacketTooShort', offset)}",
        ]
        if most:
            lines.append(f"\tif ({slot.fixed} + bytes > {most}) {self._fail('HeaderTooShort', offset)}")
        lines += [
            f"\tif ({place} + {slot.fixed} + bytes > {_DEEPEST})",
            "\t\tgoto deep;",
        ]
        if offset is not None:
            self.deepest = max(self.deepest, offset + slot.room)
            lines.append(f"\tst->offset = {offset};")
        lines += [
            f"\tcopy_bytes({slot.base}, {self._base(offset)}, {slot.varbit_at});",
            f"\tcopy_many({slot.base} + {slot.varbit_at}, {self._base(offset)} + {slot.varbit_at}, "
            f"{slot.varbit_room // 8});",
            f"\tphv->varbit[{slot.index}] = bytes;",
        ]
        if rest:
            source = f"(buffer + ((st->offset + bytes) & {_DEEPEST - 1}) + {slot.varbit_at})"
            target = f"{slot.base} + {slot.varbit_at + slot.varbit_room}"
            lines.append(f"\tcopy_bytes({target}, {source}, {rest});")
        lines += [f"\tst->offset += {slot.fixed} + bytes;", "}"]
        return lines

    def _set(self, target: Expr, source: Expr, offset: int | None) -> list[str]:
        dirty = ["phv->dirty = 1;"] if self.expressions.is_packet_field(target) else []
        if not isinstance(source, Lookahead):
            if any(isinstance(e, Lookahead) for e in walk(source)):
                raise Unsupported("softswitch cannot run a lookahead within an expression")
            return [*dirty, self.expressions.assign(target, source)]
        whole = (source.bits + 7) // 8
        lines = [f"if (have < {self._place(offset)} + {whole})", f"\t{self._fail('PacketTooShort', offset)}"]
        return [*dirty, *lines, *self._peek(target, source, offset)]

    def _peek(self, target: Expr, source: Lookahead, offset: int | None) -> list[str]:
        reach = (source.offset + source.bits + 7) // 8
        self.deepest = max(self.deepest, (offset or 0) + reach)
        width = self.expressions.type_of(target).bits
        base = self._base(offset)
        if width <= 64:
            take = min(64, source.bits)
            code = self.expressions.load_bits(base, source.offset + source.bits - take, take)
            if take > width:
                code = f"({code} & {mask(width)})"
            return [self.expressions.store(target, code)]
        count = limbs(width)
        if source.bits <= 64:
            code = f"w{count}_u({self.expressions.load_bits(base, source.offset, source.bits)})"
            self.expressions.widths.add(count)
        else:
            code = self.expressions.load_wide(base, source.offset, source.bits, count)
        return [self.expressions.store(target, code)]

    def _advance(self, bits: Expr, offset: int | None) -> tuple[list[str], int | None]:
        if isinstance(bits, Constant) and offset is not None:
            if bits.value % 8:
                return [f"if (1) {self._fail('ParserInvalidArgument', offset)}"], offset
            return self._need(bits.value // 8, offset), offset + bits.value // 8
        self.dynamic = True
        lines = [
            "{",
            f"\tu64 bits = {self.expressions.unsigned(bits)};",
            f"\tif (bits % 8) {self._fail('ParserInvalidArgument', offset)}",
            f"\tif (have < {self._place(offset)} + bits / 8) {self._fail('PacketTooShort', offset)}",
            f"\tst->offset = {self._place(offset)} + bits / 8;",
            f"\tif (st->offset > {_DEEPEST})",
            "\t\tgoto deep;",
            "}",
        ]
        return lines, None

    # --- transitions ---

    def _goto(self, state: str | None, offset: int | None, following: tuple[int, ...]) -> str:
        if state is None:
            return f"{{ phv->parsed = {self._place(offset)}; goto done; }}"
        node = _Node(state, offset, following)
        self.edges[self.current].add(node)
        return self._enter(node, inside=self.current.offset is None)

    def _select(self, state: ParseState, offset: int | None, following: tuple[int, ...]) -> list[str]:
        lines = [
            self._key(i, part, bits, offset)
            for i, (part, bits) in enumerate(zip(state.key, state.key_bits, strict=True))
        ]
        for transition in state.transitions:
            if transition.value is None and transition.value_set is None:
                return [*lines, self._goto(transition.next_state, offset, following)]
            test = self._test(state, transition)
            lines.append(f"if ({test}) {self._goto(transition.next_state, offset, following)}")
        return [*lines, self._goto(None, offset, following)]

    def _key(self, index: int, part: Expr, bits: int, offset: int | None) -> str:
        if isinstance(part, Lookahead):
            self.deepest = max(self.deepest, (offset or 0) + (part.offset + bits + 7) // 8)
            base = self._base(offset)
            if bits <= 64:
                return f"u64 k{index} = {self.expressions.load_bits(base, part.offset, bits)};"
            code = self.expressions.load_wide(base, part.offset, bits, limbs(bits))
            return f"struct w{limbs(bits)} k{index} = {code};"
        if bits <= 64:
            return f"u64 k{index} = {self.expressions.reduced(part, bits)};"
        return f"struct w{limbs(bits)} k{index} = {self.expressions.wide(part, limbs(bits))};"

    def _slices(self, state: ParseState, whole: int) -> list[int]:
        """Return the parts of a key, from its byte-padded concatenation."""
        parts, rest = [], whole
        for bits in reversed(state.key_bits):
            room = align(bits, 8)
            parts.append(rest & ((1 << room) - 1) & ((1 << bits) - 1))
            rest >>= room
        return parts[::-1]

    def _test(self, state: ParseState, transition: Transition) -> str:
        masks = (
            [(1 << bits) - 1 for bits in state.key_bits]
            if transition.mask is None
            else self._slices(state, transition.mask)
        )
        if transition.value_set is not None:
            return self._in_value_set(state, transition.value_set, masks)
        assert transition.value is not None
        tests = []
        for i, (bits, value, part) in enumerate(
            zip(state.key_bits, self._slices(state, transition.value), masks, strict=True)
        ):
            if part == 0:
                continue
            full = part == (1 << bits) - 1
            for limb in range(limbs(bits)):
                name = f"k{i}.l[{limb}]" if bits > 64 else f"k{i}"
                low_mask, low_value = (part >> 64 * limb) & (2**64 - 1), (value >> 64 * limb) & (2**64 - 1)
                if not low_mask:
                    continue
                code = name if full else f"({name} & {hexadecimal(low_mask)})"
                tests.append(f"{code} == {hexadecimal(low_value & low_mask)}")
        return " && ".join(tests) or "1"

    def _in_value_set(self, state: ParseState, name: str, masks: list[int]) -> str:
        if any(bits > 64 for bits in state.key_bits):
            raise Unsupported(f"softswitch cannot run value set {name} over more than 64 bits a field")
        index = list(self.program.value_sets).index(name)
        size = self.program.value_sets[name].size
        count = len(state.key_bits)
        tests = " && ".join(f"((row_[{i}] ^ k{i}) & {hexadecimal(m)}) == 0" for i, m in enumerate(masks))
        return (
            f"({{ int in_ = 0; const u64 *set_ = shared.v{index} + 1"
            f" + (shared.v{index}[0] & 1) * {1 + size * count};"
            f" u64 n_ = set_[0]; for (u32 j_ = 0; j_ < {size}; j_++)"
            f" {{ const u64 *row_ = set_ + 1 + j_ * {count};"
            f" if (j_ < n_ && {tests}) {{ in_ = 1; break; }} }} in_; }})"
        )


def value_set_words(size: int, parts: int) -> int:
    """Return the number of 64-bit words of a value set: the active half, then twice count and rows."""
    return 1 + 2 * (1 + size * parts)
