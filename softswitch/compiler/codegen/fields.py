"""Generates loads and stores of fields: bits of headers, and native integers or limbs of metadata."""

from __future__ import annotations

from softswitch.compiler.layout import HeaderSlot, Layout, field_offset, limbs
from softswitch.compiler.program import (
    Action,
    Element,
    ElementField,
    Expr,
    FieldRef,
    FieldType,
    HeaderType,
    LastField,
    Unsupported,
)


def hexadecimal(value: int) -> str:
    return f"{value & (2**64 - 1):#x}ULL" if value > 9 or value < 0 else str(value)


def mask(bits: int) -> str:
    return hexadecimal((1 << bits) - 1)


class Fields:
    """Compiles accesses to fields, within one action or outside any."""

    def __init__(self, layout: Layout, action: Action | None = None) -> None:
        self.layout = layout
        self.program = layout.program
        self.action = action
        self.widths: set[int] = set()  # limb counts in use, for the declarations

    def unsigned(self, expr: Expr) -> str:
        """Return C for a u64 used as an index. `Expressions` implements it."""
        raise NotImplementedError

    # --- packet fields by position ---

    def load_bits(self, base: str, offset: int, bits: int) -> str:
        """Return C for the `bits` (at most 64) that begin `offset` bits after `base`."""
        first, last = offset // 8, (offset + bits - 1) // 8
        span = last - first + 1
        if span > 8:
            extra = (offset + bits) % 8
            low = f"LD8({base}, {first + 8}) >> {8 - extra}"
            return f"((LD64({base}, {first}) << {extra} | {low}) & {mask(bits)})"
        size = next(s for s in (1, 2, 4, 8) if s >= span)
        shift = 8 * size - offset % 8 - bits
        code = f"(u64)LD{8 * size}({base}, {first})"
        if shift:
            code = f"{code} >> {shift}"
        return f"({code})" if offset % 8 == 0 else f"({code} & {mask(bits)})"

    def store_bits(self, base: str, offset: int, bits: int, value: str) -> str:
        """Return a C statement that stores `value`, reduced to `bits` (at most 64)."""
        first, last = offset // 8, (offset + bits - 1) // 8
        span = last - first + 1
        if offset % 8 == 0 and bits in (8, 16, 32, 64):
            return f"ST{bits}({base}, {first}, {value});"
        if span > 8:
            head = 8 - offset % 8
            high = self.store_bits(base, offset, head, f"(v_ >> {bits - head})")
            low = self.store_bits(base, offset + head, bits - head, f"(v_ & {mask(bits - head)})")
            return f"{{ u64 v_ = {value}; {high} {low} }}"
        if offset % 8 == 0 and bits % 8 == 0:  # 3, 5, 6 or 7 bytes: two or three plain stores
            parts, done = [], 0
            for size in (4, 2, 1):
                if bits // 8 - done >= size:
                    rest = bits - 8 * (done + size)
                    parts.append(f"ST{8 * size}({base}, {first + done}, v_ >> {rest});")
                    done += size
            return f"{{ u64 v_ = {value}; {' '.join(parts)} }}"
        size = next(s for s in (1, 2, 4, 8) if s >= span)
        shift = 8 * size - offset % 8 - bits
        keep = hexadecimal(((1 << 8 * size) - 1) & ~(((1 << bits) - 1) << shift))
        return (
            f"ST{8 * size}({base}, {first}, (LD{8 * size}({base}, {first}) & {keep})"
            f" | (u64)({value}) << {shift});"
        )

    def load_wide(self, base: str, offset: int, bits: int, count: int) -> str:
        """Return C for a `struct w<count>` from more than 64 bits."""
        self.widths.add(count)
        parts = []
        for i in range(count):
            low = bits - 64 * i
            if low <= 0:
                parts.append("0")
                continue
            take = min(64, low)
            parts.append(self.load_bits(base, offset + low - take, take))
        return f"(struct w{count}){{{{{', '.join(parts)}}}}}"

    def store_wide(self, base: str, offset: int, bits: int, value: str, count: int) -> str:
        parts = [f"struct w{count} w_ = {value};"]
        for i in range(limbs(bits)):
            low = bits - 64 * i
            take = min(64, low)
            limb = f"w_.l[{i}]" if take == 64 else f"(w_.l[{i}] & {mask(take)})"
            parts.append(self.store_bits(base, offset + low - take, take, limb))
        return f"{{ {' '.join(parts)} }}"

    # --- fields ---

    def element_base(self, stack: str, index: str) -> str:
        """Return C for an element's first byte. The caller checks `index`."""
        return f"((u8 *)phv->s{self.layout.stack_index[stack]} + {index} * {self.layout.stack_stride[stack]})"

    def type_of(self, expr: Expr) -> FieldType:
        match expr:
            case FieldRef():
                return self.program.field_type(expr)
            case LastField(stack, name) | ElementField(Element(stack, _), name):
                return self.program.field_type(FieldRef(self.program.stacks[stack].elements[0], name))
        raise Unsupported(f"softswitch cannot run an assignment to {expr}")

    def _raw_field(self, expr: Expr, count: int) -> str:
        """Return C for a field's stored bits: u64 (count 0) or struct w<count>."""
        kind = self.type_of(expr)
        if isinstance(expr, FieldRef):
            if expr in self.layout.metadata:
                name = f"phv->{self.layout.metadata[expr]}"
                return self.native(name, kind.bits, count)
            slot = self.layout.slots[expr.header]
            if expr.field == "$valid$":
                return f"(u64){slot.valid}"
            return self._slot_field(slot.base, slot.header.type, expr.field, kind.bits, count)
        stack, index = self._element_index(expr)
        first = self.layout.first_slot(stack)
        size = len(self.program.stacks[stack].elements)
        name = expr.field if isinstance(expr, ElementField | LastField) else ""
        zero = f"w{count}_u(0)" if count else "0"
        if name == "$valid$":
            body = f"(u64)phv->valid[{first.index} + i_]"
        else:
            body = self._slot_field(self.element_base(stack, "i_"), first.header.type, name, kind.bits, count)
        kind_c = f"struct w{count}" if count else "u64"
        return (
            f"({{ u64 i_ = {index}; OPAQUE(i_); {kind_c} r_ = {zero}; if (i_ < {size}) r_ = {body}; r_; }})"
        )

    def _element_index(self, expr: Expr) -> tuple[str, str]:
        match expr:
            case LastField(stack, _):
                return stack, f"(u64)phv->next[{self.layout.stack_index[stack]}] - 1"
            case ElementField(Element(stack, index), _) | Element(stack, index):
                return stack, self.unsigned(index)
        raise Unsupported(f"softswitch cannot run {expr} as a stack element")

    def _slot_field(self, base: str, kind: HeaderType, name: str, bits: int, count: int) -> str:
        offset = field_offset(kind, name)
        if bits > 64:
            if not count:
                return self.load_bits(base, offset + bits - 64, 64)
            return self.load_wide(base, offset, bits, count)
        code = self.load_bits(base, offset, bits)
        return f"w{count}_u({code})" if count else code

    def native(self, name: str, bits: int, count: int) -> str:
        """Return C for a native integer (or limbs) as u64 (count 0) or struct w<count>."""
        if bits <= 64:
            if count:
                self.widths.add(count)
            return f"w{count}_u({name})" if count else f"(u64){name}"
        if not count:
            return f"{name}[0]"
        self.widths.add(count)
        own = limbs(bits)
        return (
            f"(struct w{count}){{{{{', '.join(f'{name}[{i}]' if i < own else '0' for i in range(count))}}}}}"
        )

    def store(self, target: Expr, code: str) -> str:
        """Return a C statement that stores reduced u64 code or struct code into a field."""
        kind = self.type_of(target)
        count = limbs(kind.bits)
        if isinstance(target, FieldRef):
            if target.field == "$valid$":
                raise Unsupported(f"softswitch cannot assign to the validity of {target.header}")
            if target in self.layout.metadata:
                name = f"phv->{self.layout.metadata[target]}"
                if kind.bits <= 64:
                    return f"{name} = {code};"
                top = kind.bits - 64 * (count - 1)
                parts = [f"{name}[{i}] = w_.l[{i}];" for i in range(count - 1)]
                parts.append(f"{name}[{count - 1}] = w_.l[{count - 1}] & {mask(top)};")
                return f"{{ struct w{count} w_ = {code}; {' '.join(parts)} }}"
            slot = self.layout.slots[target.header]
            return self._store_slot(slot.base, slot, target.field, kind.bits, code)
        stack, index = self._element_index(target)
        slot = self.layout.first_slot(stack)
        name = target.field if isinstance(target, ElementField | LastField) else ""
        inner = self._store_slot(self.element_base(stack, "i_"), slot, name, kind.bits, code)
        size = len(self.program.stacks[stack].elements)
        return f"{{ u64 i_ = {index}; OPAQUE(i_); if (i_ < {size}) {inner} }}"

    def _store_slot(self, base: str, slot: HeaderSlot, name: str, bits: int, code: str) -> str:
        offset = field_offset(slot.header.type, name)
        if bits <= 64:
            return self.store_bits(base, offset, bits, code)
        return self.store_wide(base, offset, bits, code, limbs(bits))

    def is_packet_field(self, target: Expr) -> bool:
        """Return whether a store to `target` changes a header rather than metadata."""
        return not (isinstance(target, FieldRef) and self.program.headers[target.header].metadata)
