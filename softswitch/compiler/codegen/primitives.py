"""Generates C for BMv2's primitives (targets/simple_switch/primitives.cpp, core/primitives.cpp)."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import mask
from softswitch.compiler.layout import HeaderSlot, Layout, align, limbs
from softswitch.compiler.program import (
    Constant,
    Element,
    Expr,
    FieldRef,
    HeaderRef,
    Op,
    Primitive,
    StackRef,
    UnionRef,
    Unsupported,
)

STATEFUL = {"register_read", "register_write", "execute_meter"}
_ARITHMETIC = {
    "add": "+",
    "subtract": "-",
    "bit_xor": "^",
    "bit_or": "|",
    "bit_and": "&",
    "shift_left": "<<",
    "shift_right": ">>",
}


class Primitives:
    """Compiles single primitives to C statements."""

    def __init__(self, layout: Layout, drop_port: int) -> None:
        self.layout = layout
        self.program = layout.program
        self.drop_port = drop_port
        self.registers = {name: i for i, name in enumerate(self.program.registers)}
        self.counters = {name: i for i, name in enumerate(self.program.counters)}
        self.meters = {name: i for i, name in enumerate(self.program.meters)}
        self.calculations = {name: f"calculate_{i}" for i, name in enumerate(self.program.calculations)}
        self.expressions = Expressions(layout)

    def _touches_packet(self, primitive: Primitive) -> bool:
        if primitive.op in ("log_msg", "count", "mark_to_drop", "_jump", "_jump_if_zero", "assert", "assume"):
            return False
        if (
            primitive.op in ("push", "pop", "add_header", "remove_header", "copy_header")
            or "assign_" in primitive.op
        ):
            target = primitive.args[0]
            name = target.name if isinstance(target, HeaderRef) else getattr(target, "header", None)
            return name is None or not self.program.headers[name].metadata
        targets = [
            a
            for a in primitive.args
            if isinstance(a, FieldRef) or hasattr(a, "element") or hasattr(a, "stack")
        ]
        if primitive.op in ("register_write", "truncate", "generate_digest") or primitive.op.startswith(
            "clone_"
        ):
            return False
        if primitive.op == "execute_meter":
            targets = [primitive.args[2]]
        else:
            targets = targets[:1] if targets and targets[0] is primitive.args[0] else []
        return any(self.expressions.is_packet_field(t) for t in targets)

    def inline(self, primitive: Primitive) -> list[str]:
        """Return C for a primitive in the parser, outside any action."""
        if primitive.op in STATEFUL or primitive.op == "modify_field_rng_uniform":
            raise Unsupported(f"softswitch cannot run {primitive.op} in the parser at {primitive.source}")
        dirty = ["phv->dirty = 1;"] if self._touches_packet(primitive) else []
        return dirty + self._primitive(primitive, 0)

    # --- primitives ---

    def _primitive(self, primitive: Primitive, index: int) -> list[str]:
        handler: Callable[..., list[str]] | None = getattr(self, f"_do_{primitive.op.lstrip('_')}", None)
        if primitive.op in _ARITHMETIC:
            target, left, right = primitive.args
            return [self.expressions.assign(target, Op(_ARITHMETIC[primitive.op], (left, right)))]
        if handler is None:
            raise Unsupported(f"softswitch cannot run the primitive {primitive.op!r} at {primitive.source}")
        try:
            if primitive.op == "modify_field_rng_uniform":
                return self._do_modify_field_rng_uniform(*primitive.args, index=index)
            return handler(*primitive.args)
        except Unsupported as error:
            if primitive.source and primitive.source not in str(error):
                raise Unsupported(f"{error} at {primitive.source}") from error
            raise

    def _do_assign(self, target: Expr, source: Expr) -> list[str]:
        return [self.expressions.assign(target, source)]

    _do_modify_field = _do_assign

    def _do_no_op(self) -> list[str]:
        return []

    def _do_log_msg(self, *_: object) -> list[str]:
        return []

    def _do_exit(self) -> list[str]:
        return ["phv->exits = 1;"]

    def _do_assert(self, condition: Expr) -> list[str]:
        if self.expressions.is_boolean(condition):
            test = self.expressions.boolean(condition)
        else:
            value = self.expressions.exact(condition)
            test = f"({value.code} != 0)" if not value.wide else "1"
        return [f"if (!{test})", "\tphv->failed = phv->exits = 1;"]

    _do_assume = _do_assert

    def _do_jump(self, *_: Expr) -> list[str]:
        target = _[-1]
        assert isinstance(target, Constant)
        return [f"goto at_{target.value};"]

    def _do_jump_if_zero(self, condition: Expr, target: Expr) -> list[str]:
        assert isinstance(target, Constant)
        if self.expressions.is_boolean(condition):
            return [f"if (!{self.expressions.boolean(condition)})", f"\tgoto at_{target.value};"]
        return [f"if (!({self.expressions.raw(condition)}))", f"\tgoto at_{target.value};"]

    def _standard(self, name: str, code: str) -> list[str]:
        ref = self.program.standard(name)
        return [self.expressions.store(ref, code)] if ref else []

    def _do_drop(self) -> list[str]:
        return [
            *self._standard("standard_metadata.egress_spec", str(self.drop_port)),
            *self._standard("intrinsic_metadata.mcast_grp", "0"),
        ]

    def _do_mark_to_drop(self, *_: Expr) -> list[str]:
        return self._do_drop()

    # headers

    def mark_valid(self, slot: HeaderSlot) -> list[str]:
        """Return C that makes a header valid, and its siblings in a union invalid."""
        lines = [f"{slot.valid} = 1;"]
        union = self.layout.union_of.get(slot.header.name)
        for sibling in union.members if union else ():
            if sibling != slot.header.name:
                lines.append(f"{self.layout.slots[sibling].valid} = 0;")
        return lines

    def _places(self, ref: Expr) -> tuple[str, HeaderSlot, str, str, str]:
        """Return prelude, slot, and C for first byte, validity and presence of a header."""
        if isinstance(ref, HeaderRef):
            if ref.name not in self.layout.slots:
                raise Unsupported(f"softswitch cannot use metadata struct {ref.name} as a header")
            slot = self.layout.slots[ref.name]
            return "", slot, slot.base, slot.valid, slot.present
        if isinstance(ref, Element):
            slot = self.layout.first_slot(ref.stack)
            if slot.varbit_room:
                raise Unsupported(f"softswitch cannot index stack {ref.stack} of varbit headers at run time")
            size = len(self.program.stacks[ref.stack].elements)
            prelude = f"u64 e_ = {self.expressions.unsigned(ref.index)}; OPAQUE(e_); if (e_ < {size})"
            valid = f"phv->valid[{slot.index} + e_]"
            return prelude, slot, self.expressions.element_base(ref.stack, "e_"), valid, valid
        raise Unsupported(f"softswitch cannot use {type(ref).__name__} as a header")

    def _do_add_header(self, ref: Expr) -> list[str]:
        prelude, slot, base, valid, present = self._places(ref)
        body = [
            f"if (!{present}) {{",
            f"\tclear_words({base}, {align(slot.room, 8) // 8});",
            f"\tphv->length += {slot.fixed};",
        ]
        if slot.varbit_room:
            body.append(f"\tphv->varbit[{slot.index}] = 0;")
        marks = self.mark_valid(slot) if isinstance(ref, HeaderRef) else [f"{valid} = 1;"]
        body += [*(f"\t{m}" for m in marks), "}"]
        return ["{", f"{prelude} {{", *(f"\t{b}" for b in body), "}}"]

    def _do_remove_header(self, ref: Expr) -> list[str]:
        prelude, slot, _, valid, present = self._places(ref)
        body = [f"if ({present}) {{", f"\tphv->length -= {slot.length};", f"\t{valid} = 0;", "}"]
        return ["{", f"{prelude} {{", *(f"\t{b}" for b in body), "}}"]

    def _copy(self, to: str, source: str, slot: HeaderSlot) -> str:
        return f"copy_words({to}, {source}, {align(slot.room, 8) // 8});"

    def _do_assign_header(self, target: Expr, source: Expr) -> list[str]:
        match source:
            case Op("?", (condition, left, right)):
                return [
                    f"if ({self.expressions.boolean(condition)}) {{",
                    *(f"\t{line}" for line in self._do_assign_header(target, left)),
                    "} else {",
                    *(f"\t{line}" for line in self._do_assign_header(target, right)),
                    "}",
                ]
        if isinstance(target, HeaderRef) and target.name not in self.layout.slots:
            return self._assign_struct(target, source)
        before_s, slot, from_base, _, from_present = self._places(source)
        before_t, _, to_base, to_valid, _ = self._places(target)
        if before_s and before_t:
            raise Unsupported("softswitch cannot copy between two stack elements by run-time index")
        varbit = []
        if slot.varbit_room and isinstance(target, HeaderRef) and isinstance(source, HeaderRef):
            own = self.layout.slots[target.name]
            varbit.append(f"\tphv->varbit[{own.index}] = phv->varbit[{slot.index}];")
        marks = (
            self.mark_valid(self.layout.slots[target.name])
            if isinstance(target, HeaderRef)
            else [f"{to_valid} = 1;"]
        )
        return [
            "{",
            f"{before_s or before_t} {{",
            f"\tif ({from_present}) {{",
            f"\t\t{self._copy(to_base, from_base, slot)}",
            *(f"\t{v}" for v in varbit),
            *(f"\t\t{m}" for m in marks),
            "\t} else {",
            f"\t\t{to_valid} = 0;",
            "\t}",
            "}}",
        ]

    def _assign_struct(self, target: HeaderRef, source: Expr) -> list[str]:
        """Return C that copies a metadata struct."""
        if not isinstance(source, HeaderRef) or source.name in self.layout.slots:
            raise Unsupported(f"softswitch cannot copy a header to the metadata struct {target.name}")
        names = [f.name for f in self.program.headers[target.name].type.fields]
        return [self.expressions.assign(FieldRef(target.name, n), FieldRef(source.name, n)) for n in names]

    _do_copy_header = _do_assign_header

    def _do_assign_union(self, target: Expr, source: Expr) -> list[str]:
        assert isinstance(target, UnionRef) and isinstance(source, UnionRef)
        unions = self.program.unions
        pairs = zip(unions[target.name].members, unions[source.name].members, strict=True)
        # Invalid members first: making one valid makes its siblings invalid.
        return [line for a, b in pairs for line in self._do_assign_header(HeaderRef(a), HeaderRef(b))]

    def _do_assign_header_stack(self, target: Expr, source: Expr) -> list[str]:
        assert isinstance(target, StackRef) and isinstance(source, StackRef)
        stacks = self.program.stacks
        index = self.layout.stack_index
        lines = [f"phv->next[{index[target.name]}] = phv->next[{index[source.name]}];"]
        for a, b in zip(stacks[target.name].elements, stacks[source.name].elements, strict=True):
            lines += self._do_assign_header(HeaderRef(a), HeaderRef(b))
        return lines

    def _do_assign_vl(self, target: Expr, source: Expr) -> list[str]:
        if not isinstance(target, FieldRef) or not isinstance(source, FieldRef):
            raise Unsupported("softswitch cannot copy varbit fields of stack elements by run-time index")
        to, source_slot = self.layout.slots[target.header], self.layout.slots[source.header]
        words = min(to.varbit_room, source_slot.varbit_room) // 8
        return [
            f"copy_many({to.base} + {to.varbit_at}, {source_slot.base} + {source_slot.varbit_at}, {words});",
            f"phv->varbit[{to.index}] = phv->varbit[{source_slot.index}];",
        ]

    def _do_assign_VL(self, target: Expr, source: Expr) -> list[str]:  # noqa: N802 (BMv2's name)
        return self._do_assign_vl(target, source)

    def _shift(self, stack: str, count: Expr, push: bool) -> list[str]:
        if not isinstance(count, Constant):
            raise Unsupported(f"softswitch cannot push or pop a computed number of elements of {stack}")
        slots = [self.layout.slots[e] for e in self.program.stacks[stack].elements]
        size, by = len(slots), min(count.value, len(slots))
        if by == 0:
            return []
        following = f"phv->next[{self.layout.stack_index[stack]}]"
        if push:
            lines = [f"{following} = {following} + {by} > {size} ? {size} : {following} + {by};"]
            moves = [(i, i - by) for i in range(size - 1, by - 1, -1)]
            emptied = range(by)
        else:
            lines = [f"{following} = {following} > {by} ? {following} - {by} : 0;"]
            moves = [(i, i + by) for i in range(size - by)]
            emptied = range(size - by, size)
        for to, source in moves:
            lines += [
                self._copy(slots[to].base, slots[source].base, slots[to]),
                f"{slots[to].valid} = {slots[source].valid};",
                f"phv->varbit[{slots[to].index}] = phv->varbit[{slots[source].index}];",
            ]
        return lines + [f"{slots[i].valid} = 0;" for i in emptied]

    def _do_push(self, stack: Expr, count: Expr) -> list[str]:
        assert isinstance(stack, StackRef)
        return self._shift(stack.name, count, True)

    def _do_pop(self, stack: Expr, count: Expr) -> list[str]:
        assert isinstance(stack, StackRef)
        return self._shift(stack.name, count, False)

    # state

    def _do_register_read(self, target: Expr, register: tuple[str, str], index: Expr) -> list[str]:
        declared = self.program.registers[register[1]]
        cell = f"shared.r{self.registers[register[1]]}[i_]"
        bits = declared.bits
        width = self.expressions.type_of(target).bits
        if bits <= 64 and width <= 64:
            code = f"(u64){cell}"
            if bits > width:
                code = f"({code} & {mask(width)})"
            store = self.expressions.store(target, code)
        else:
            count = max(limbs(width), 1)
            source = self.expressions.native(cell, bits, count if width > 64 else 0)
            if width <= 64:
                source = f"({source} & {mask(width)})"
            store = self.expressions.store(target, source)
        return ["{", *self._indexed(index, declared.size, store), "}"]

    def _do_register_write(self, register: tuple[str, str], index: Expr, source: Expr) -> list[str]:
        declared = self.program.registers[register[1]]
        cell = f"shared.r{self.registers[register[1]]}[i_]"
        bits = declared.bits
        if bits <= 64:
            store = f"{cell} = {self.expressions.reduced(source, bits)};"
        else:
            count = limbs(bits)
            top = bits - 64 * (count - 1)
            parts = [f"{cell}[{i}] = w_.l[{i}];" for i in range(count - 1)]
            parts.append(f"{cell}[{count - 1}] = w_.l[{count - 1}] & {mask(top)};")
            store = f"{{ struct w{count} w_ = {self.expressions.wide(source, count)}; {' '.join(parts)} }}"
        return ["{", *self._indexed(index, declared.size, store), "}"]

    def _indexed(self, index: Expr, size: int, store: str) -> list[str]:
        """Return C that runs `store` with `i_` set to the index. Like BMv2, ignore an index out of range."""
        return [
            f"\tu64 i_ = {self.expressions.unsigned(index)};",
            "\tOPAQUE(i_);",
            f"\tif (i_ < {size})",
            f"\t\t{store}",
        ]

    def _do_count(self, counter: tuple[str, str], index: Expr) -> list[str]:
        declared = self.program.counters[counter[1]]
        body = f"count(shared.c{self.counters[counter[1]]}[cpu_] + i_, st);"
        return [
            "{",
            "\tu32 cpu_ = st->cpu;",
            "\tif (cpu_ < CPUS) {",
            *(f"\t{line}" for line in self._indexed(index, declared.size, body)),
            "\t}",
            "}",
        ]

    def _do_execute_meter(self, meter: tuple[str, str], index: Expr, target: Expr) -> list[str]:
        declared = self.program.meters[meter[1]]
        amount = "phv->arrived" if declared.unit == "bytes" else "phv->segments"
        cell = f"&shared.e{self.meters[meter[1]]}[i_]"
        bits = self.expressions.type_of(target).bits
        colour = self._resized(f"meter_execute({cell}, now_us, {amount})", bits)
        return ["{", *self._indexed(index, declared.size, self.expressions.store(target, colour)), "}"]

    def _resized(self, code: str, bits: int) -> str:
        """Return C for the low `bits` of u64 `code`, as a struct from 65 bits on."""
        if bits > 64:
            self.expressions.widths.add(limbs(bits))
            return f"w{limbs(bits)}_u({code})"
        return code if bits == 64 else f"({code} & {mask(bits)})"

    def _do_modify_field_with_hash_based_offset(
        self, target: Expr, base: Expr, calculation: tuple[str, str], size: Expr
    ) -> list[str]:
        bits = self.expressions.type_of(target).bits
        code = self._resized(f"(h_ % (z_ ? z_ : 1) + {self.expressions.raw(base)})", bits)
        function = self.calculations[calculation[1]]
        if self.program.calculations[calculation[1]].payload:
            raise Unsupported(
                f"softswitch cannot run {calculation[1]}, a hash over the payload, in an action"
            )
        return [
            f"{{ u64 h_ = {function}(skb, st), z_ = {self.expressions.raw(size)};",
            f"\t{self.expressions.store(target, code)} }}",
        ]

    def _do_modify_field_rng_uniform(
        self, target: Expr, low: Expr, high: Expr, *, index: int = 0
    ) -> list[str]:
        bits = self.expressions.type_of(target).bits
        code = self._resized(f"(l_ + (z_ ? random_{index} % z_ : random_{index}))", bits)
        return [
            f"{{ u64 l_ = {self.expressions.raw(low)}, h_ = {self.expressions.raw(high)}, z_ = h_ - l_ + 1;",
            f"\tif (l_ <= h_) {self.expressions.store(target, code)} }}",
        ]

    # the traffic manager

    def _do_clone_ingress_pkt_to_egress(self, session: Expr, fields: Expr) -> list[str]:
        return [
            f"phv->clone_session = ({self.expressions.raw(session)} & 0x7fff) | 0x8000;",
            f"phv->clone_list = {self.expressions.raw(fields)};",
        ]

    _do_clone_egress_pkt_to_egress = _do_clone_ingress_pkt_to_egress

    def _do_generate_digest(self, _: Expr, learn: Expr) -> list[str]:
        return [f"phv->digest_list = {self.expressions.raw(learn)};"]

    def _do_resubmit(self, fields: Expr) -> list[str]:
        return [f"phv->resubmit_list = {self.expressions.raw(fields)};"]

    def _do_recirculate(self, fields: Expr) -> list[str]:
        return [f"phv->recirculate_list = {self.expressions.raw(fields)};"]

    def _do_truncate(self, length: Expr) -> list[str]:
        return [
            f"{{ u64 t_ = {self.expressions.unsigned(length)};",
            "\tif (t_ < phv->truncated) phv->truncated = t_; }",
        ]
