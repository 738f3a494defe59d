"""Generates C for BMv2's expressions.

BMv2 computes with unbounded integers, and reduces a value only when it stores it. So the compiler tracks the
exact interval of each expression, and picks the narrowest C type that holds it: `u64`, `s64`, or `struct wN`,
a two's complement integer of N limbs (runtime/base.h).

Sometimes only the value modulo 2^64 matters: in an assignment to a field of at most 64 bits, or in
`e & mask`. Ring operators then work on the low 64 bits of their operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softswitch.compiler.codegen.fields import Fields, hexadecimal, mask
from softswitch.compiler.layout import MAX_BITS, HeaderSlot, limbs
from softswitch.compiler.program import (
    Boolean,
    Constant,
    Element,
    ElementField,
    Expr,
    FieldRef,
    HeaderRef,
    LastField,
    Op,
    Param,
    RegisterCell,
    StackRef,
    UnionRef,
    Unsupported,
)

_COMPARE = {"==": "==", "!=": "!=", ">": ">", "<": "<", ">=": ">=", "<=": "<="}
_RING = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_BOOLEAN = {"==", "!=", ">", "<", ">=", "<=", "and", "or", "not", "valid", "valid_union", "d2b"}


@dataclass(frozen=True)
class Value:
    """C code for an exact value in [low, high]. `wide` is the number of limbs, or 0 for u64 and s64."""

    code: str
    low: int
    high: int
    wide: int = 0

    @property
    def kind(self) -> str:
        return f"w{self.wide}" if self.wide else "u64" if self.low >= 0 else "s64"


def _bits_signed(low: int, high: int) -> int:
    return max(low.bit_length() if low >= 0 else (~low).bit_length(), high.bit_length()) + 1


def _sign_extended(code: str, bits: int) -> Value:
    """Return the two's complement in the low `bits` of `code`: a u64, or a struct from 65 bits on."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if bits <= 64:
        return Value(f"sext64({code}, {bits})", low, high)
    count = limbs(bits)
    if shift := 64 * count - bits:
        code = f"w{count}_sar(w{count}_shl({code}, {shift}), {shift})"
    return Value(code, low, high, count)


class Expressions(Fields):
    """Compiles expressions, within one action (for its parameters) or outside any."""

    # --- exact values ---

    def _convert(self, value: Value, count: int) -> str:
        """Return C for `value` as struct w<count>."""
        self.widths.add(count)
        if value.wide == count:
            return value.code
        if not value.wide:
            return f"w{count}_{'u' if value.low >= 0 else 's'}({value.code})"
        # Convert between wide values of different sizes: sign-extend or truncate.
        fill = f"(u64)((s64)t_.l[{value.wide - 1}] >> 63)"
        parts = [f"t_.l[{i}]" if i < value.wide else fill for i in range(count)]
        return f"({{ struct w{value.wide} t_ = {value.code}; (struct w{count}){{{{{', '.join(parts)}}}}}; }})"

    def _holder(self, low: int, high: int) -> int:
        """Return the number of limbs for [low, high]: 0 if u64 or s64 suffices."""
        if (low >= 0 and high < 2**64) or (low >= -(2**63) and high < 2**63):
            return 0
        bits = _bits_signed(low, high)
        if bits > 2 * MAX_BITS:
            raise Unsupported(f"softswitch cannot run an exact value of {bits} bits")
        return limbs(bits)

    def exact(self, expr: Expr) -> Value:
        """Return the expression's exact value."""
        match expr:
            case Constant(value):
                return self._constant(value)
            case Param(index):
                assert self.action is not None
                bits = self.action.params[index][1]
                return self._unsigned_native(f"a->p{index}", bits)
            case FieldRef() | LastField() | ElementField():
                return self._field(expr)
            case RegisterCell():
                raise Unsupported(
                    f"softswitch cannot run a register read within an expression ({expr.register})"
                )
            case Op(op, args):
                return self._operator(op, args)
        raise Unsupported(f"softswitch cannot run {type(expr).__name__} as a number")

    def _constant(self, value: int) -> Value:
        count = self._holder(value, value)
        if not count:
            return Value(hexadecimal(value), value, value)
        self.widths.add(count)
        parts = [hexadecimal(value >> (64 * i)) for i in range(count)]
        return Value(f"(struct w{count}){{{{{', '.join(parts)}}}}}", value, value, count)

    def _unsigned_native(self, name: str, bits: int) -> Value:
        count = 0 if bits <= 64 else limbs(bits + 1)
        return Value(self.native(name, bits, count), 0, (1 << bits) - 1, count)

    def _field(self, expr: Expr) -> Value:
        kind = self.type_of(expr)
        bits = kind.bits
        if kind.varbit:
            raise Unsupported(f"softswitch cannot run varbit field {kind.name} as a number")
        if not kind.signed:
            count = 0 if bits <= 64 else limbs(bits + 1)
            return Value(self._raw_field(expr, count), 0, (1 << bits) - 1, count)
        return _sign_extended(self._raw_field(expr, 0 if bits <= 64 else limbs(bits)), bits)

    def _operator(self, op: str, args: Sequence[Expr]) -> Value:
        match op:
            case "+" | "-" | "*" | "&" | "|" | "^":
                return self._ring(op, args[0], args[1])
            case "~":
                inner = self.exact(args[0])
                return self._negated(inner)
            case "<<":
                return self._shift_left(args[0], args[1])
            case ">>":
                return self._shift_right(self.exact(args[0]), args[1])
            case "/" | "%":
                left, right = self.exact(args[0]), self.exact(args[1])
                if left.kind != "u64" or right.kind != "u64":
                    raise Unsupported(
                        f"softswitch cannot run {op} on signed operands or on more than 64 bits"
                    )
                high = left.high if op == "/" else min(left.high, max(right.high - 1, 0))
                name = "div64" if op == "/" else "mod64"
                return Value(f"{name}({left.code}, {right.code})", 0, max(high, left.high), 0)
            case "?":
                return self._choice(args)
            case "two_comp_mod":
                bits = self._width(args[1])
                code = self.raw(args[0]) if bits <= 64 else self.wide(args[0], limbs(bits))
                return _sign_extended(code, bits)
            case "usat_cast" | "sat_cast":
                bits = self._width(args[1])
                low, high = (
                    (0, (1 << bits) - 1) if op == "usat_cast" else (-(1 << bits - 1), (1 << bits - 1) - 1)
                )
                return self._saturated(self.exact(args[0]), low, high)
            case "b2d":
                return Value(f"(u64)({self.boolean(args[0])})", 0, 1)
            case "last_stack_index" | "size_stack":
                assert isinstance(args[0], StackRef)
                size = len(self.program.stacks[args[0].name].elements)
                count = f"phv->next[{self.layout.stack_index[args[0].name]}]"
                if op == "size_stack":
                    return Value(f"(u64){count}", 0, size)
                return Value(f"((s64){count} - 1)", -1, size - 1)
        if op in _BOOLEAN:
            return Value(f"(u64)({self.boolean(Op(op, tuple(args)))})", 0, 1)
        raise Unsupported(f"softswitch cannot run the operator {op!r} as a number")

    @staticmethod
    def _width(expr: Expr) -> int:
        if not isinstance(expr, Constant):
            raise Unsupported("softswitch cannot run a cast to a width that is not constant")
        return expr.value

    def _ring(self, op: str, left: Expr, right: Expr) -> Value:
        a, b = self.bounds(left), self.bounds(right)
        low, high = self._ring_bounds(op, a, b)
        count = self._holder(low, high)
        if count:
            return Value(
                f"w{count}_{_RING[op]}({self.wide(left, count)}, {self.wide(right, count)})", low, high, count
            )
        code = f"({self.raw(left)} {op} {self.raw(right)})"
        return Value(code if low >= 0 else f"(s64){code}", low, high)

    @staticmethod
    def _ring_bounds(op: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        if op == "+":
            return a[0] + b[0], a[1] + b[1]
        if op == "-":
            return a[0] - b[1], a[1] - b[0]
        if op == "*":
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        if op == "&" and (a[0] >= 0 or b[0] >= 0):
            return 0, min(x[1] for x in (a, b) if x[0] >= 0)
        if a[0] >= 0 and b[0] >= 0:
            return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
        bits = max(_bits_signed(*a), _bits_signed(*b))
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def bounds(self, expr: Expr) -> tuple[int, int]:
        """Return the exact interval of the expression's value, without its code."""
        match expr:
            case Constant(value):
                return value, value
            case Param(index):
                assert self.action is not None
                return 0, (1 << self.action.params[index][1]) - 1
            case FieldRef() | LastField() | ElementField():
                kind = self.type_of(expr)
                if kind.signed:
                    return -(1 << kind.bits - 1), (1 << kind.bits - 1) - 1
                return 0, (1 << kind.bits) - 1
            case Op("+" | "-" | "*" | "&" | "|" | "^" as op, (left, right)):
                return self._ring_bounds(op, self.bounds(left), self.bounds(right))
            case Op("~", (inner,)):
                low, high = self.bounds(inner)
                return ~high, ~low
            case Op("<<", (left, amount)):
                (low, high), (_, most) = self.bounds(left), self.bounds(amount)
                most = min(most, 4 * MAX_BITS)  # `_holder` refuses larger values anyway
                return min(low << most, low), max(high << most, high)
            case Op(">>", (left, _)):
                low, high = self.bounds(left)
                return min(low, 0), max(high, 0)
        exact = self.exact(expr)
        return exact.low, exact.high

    def _negated(self, inner: Value) -> Value:
        low, high = ~inner.high, ~inner.low
        count = max(self._holder(low, high), inner.wide)
        if count:
            return Value(f"w{count}_not({self._convert(inner, count)})", low, high, count)
        return Value(f"(s64)(~{inner.code})" if low < 0 else f"(~{inner.code})", low, high)

    def _shift_left(self, left: Expr, amount: Expr) -> Value:
        low, high = self.bounds(Op("<<", (left, amount)))
        count = self._holder(low, high)
        by = self.unsigned(amount)
        if count:
            return Value(f"w{count}_shl({self.wide(left, count)}, {by})", low, high, count)
        code = f"shl64({self.raw(left)}, {by})"
        return Value(code if low >= 0 else f"(s64){code}", low, high)

    def _shift_right(self, left: Value, amount: Expr) -> Value:
        low, high = min(left.low, 0), max(left.high, 0)
        if isinstance(amount, Constant) and amount.value >= 0:
            low, high = left.low >> amount.value, left.high >> amount.value
        by = self.unsigned(amount)
        if left.wide:
            return self._narrow(Value(f"w{left.wide}_sar({left.code}, {by})", low, high, left.wide))
        return Value(f"{'shr64' if left.low >= 0 else 'sar64'}({left.code}, {by})", low, high)

    def _narrow(self, value: Value) -> Value:
        """Return the same value in u64 or s64 if its interval allows."""
        if not value.wide or self._holder(value.low, value.high):
            return value
        cast = "" if value.low >= 0 else "(s64)"
        return Value(f"({cast}({value.code}).l[0])", value.low, value.high)

    def _choice(self, args: Sequence[Expr]) -> Value:
        condition = self.boolean(args[0])
        left, right = self.exact(args[1]), self.exact(args[2])
        low, high = min(left.low, right.low), max(left.high, right.high)
        count = max(self._holder(low, high), left.wide, right.wide)
        if count:
            code = f"w{count}_pick({condition}, {self._convert(left, count)}, {self._convert(right, count)})"
            return Value(code, low, high, count)
        cast = "" if low >= 0 else "(s64)"
        return Value(f"({condition} ? {cast}{left.code} : {cast}{right.code})", low, high)

    def _saturated(self, value: Value, low: int, high: int) -> Value:
        if low <= value.low and value.high <= high:
            return value
        if not value.wide and value.low >= 0:
            return Value(
                f"({{ u64 s_ = {value.code}; s_ > {hexadecimal(high)} ? {hexadecimal(high)} : s_; }})",
                0,
                high,
            )
        if not value.wide and high < 2**63:
            code = f"clamp64({value.code}, {max(low, -(2**63) + 1)}LL, {high}LL)"
            return Value(code if low < 0 else f"(u64){code}", low, high)
        count = max(value.wide, self._holder(min(low, value.low), max(high, value.high)) or 2)
        self.widths.add(count)
        top, bottom = self._limbs_constant(high, count), self._limbs_constant(low, count)
        code = (
            f"({{ struct w{count} s_ = {self._convert(value, count)};"
            f" s_ = w{count}_pick(w{count}_lt({top}, s_), {top}, s_);"
            f" w{count}_pick(w{count}_lt(s_, {bottom}), {bottom}, s_); }})"
        )
        return self._narrow(Value(code, low, high, count))

    def _limbs_constant(self, value: int, count: int) -> str:
        parts = [hexadecimal(value >> (64 * i)) for i in range(count)]
        return f"(struct w{count}){{{{{', '.join(parts)}}}}}"

    # --- modular values ---

    def raw(self, expr: Expr) -> str:
        """Return C for a u64 with the low 64 bits of the expression's value."""
        match expr:
            case Constant(value):
                return hexadecimal(value)
            case Param(index):
                assert self.action is not None
                return self.native(f"a->p{index}", self.action.params[index][1], 0)
            case FieldRef() | LastField() | ElementField():
                kind = self.type_of(expr)
                if kind.bits > 64 or not kind.signed:
                    return self._raw_field(expr, 0)
            case Op("+" | "-" | "*" | "&" | "|" | "^" as op, (left, right)):
                return f"({self.raw(left)} {op} {self.raw(right)})"
            case Op("~", (inner,)):
                return f"(~{self.raw(inner)})"
            case Op("<<", (left, amount)):
                return f"shl64({self.raw(left)}, {self.unsigned(amount)})"
            case Op("?", (condition, left, right)):
                return f"({self.boolean(condition)} ? {self.raw(left)} : {self.raw(right)})"
        exact = self.exact(expr)
        return f"(({exact.code}).l[0])" if exact.wide else f"(u64){exact.code}"

    def wide(self, expr: Expr, count: int) -> str:
        """Return C for a struct w<count> with the low 64*count bits of the expression's value."""
        self.widths.add(count)
        match expr:
            case Op("+" | "-" | "*" | "&" | "|" | "^" as op, (left, right)):
                return f"w{count}_{_RING[op]}({self.wide(left, count)}, {self.wide(right, count)})"
            case Op("~", (inner,)):
                return f"w{count}_not({self.wide(inner, count)})"
            case Op("<<", (left, amount)):
                return f"w{count}_shl({self.wide(left, count)}, {self.unsigned(amount)})"
            case Op("?", (condition, left, right)):
                test = self.boolean(condition)
                return f"w{count}_pick({test}, {self.wide(left, count)}, {self.wide(right, count)})"
        return self._convert(self.exact(expr), count)

    def reduced(self, expr: Expr, bits: int) -> str:
        """Return C for a u64 with the value modulo 2^bits (at most 64)."""
        code = self.raw(expr)
        if bits == 64:
            return code
        try:
            low, high = self.bounds(expr)
        except Unsupported:
            low, high = -1, -1
        return code if low >= 0 and high < (1 << bits) else f"({code} & {mask(bits)})"

    def unsigned(self, expr: Expr) -> str:
        """Return C for a u64 used as an index or shift. A value that does not fit becomes all ones."""
        value = self.exact(expr)
        if not value.wide:
            return value.code if value.low >= 0 else f"(u64)({value.code})"
        tests = " | ".join(f"t_.l[{i}]" for i in range(1, value.wide))
        return f"({{ struct w{value.wide} t_ = {value.code}; ({tests}) ? ~0ULL : t_.l[0]; }})"

    # --- booleans ---

    def boolean(self, expr: Expr) -> str:
        """Return C for a condition."""
        match expr:
            case Boolean(value):
                return "1" if value else "0"
            case Op("and", (left, right)):
                return f"({self.boolean(left)} && {self.boolean(right)})"
            case Op("or", (left, right)):
                return f"({self.boolean(left)} || {self.boolean(right)})"
            case Op("not", (inner,)):
                return f"(!{self.boolean(inner)})"
            case Op("valid", (HeaderRef(name),)):
                slot = self.layout.slots.get(name)
                return f"({slot.present} != 0)" if slot else "1"
            case Op("valid", (Element() as element,)):
                return f"({self._raw_field(ElementField(element, '$valid$'), 0)} != 0)"
            case Op("valid_union", (UnionRef(name),)):
                slots = [self.layout.slots[m] for m in self.program.unions[name].members]
                return "(" + " || ".join(s.valid for s in slots) + ")"
            case Op("d2b", (inner,)):
                data = self.exact(inner)
                if data.wide:
                    return f"(!w{data.wide}_eq({data.code}, w{data.wide}_u(0)))"
                return f"({data.code} != 0)"
            case Op("==" | "!=" | ">" | "<" | ">=" | "<=" as op, (left, right)):
                return self._comparison(op, left, right)
            case Op("?", (condition, left, right)):
                return f"({self.boolean(condition)} ? {self.boolean(left)} : {self.boolean(right)})"
        raise Unsupported(f"softswitch cannot run {type(expr).__name__} {expr} as a condition")

    def is_boolean(self, expr: Expr) -> bool:
        match expr:
            case Boolean():
                return True
            case Op("?", (_, left, _)):
                return self.is_boolean(left)
            case Op(op, _):
                return op in _BOOLEAN
        return False

    def _comparison(self, op: str, left: Expr, right: Expr) -> str:
        if isinstance(left, HeaderRef | Element) and isinstance(right, HeaderRef | Element):
            same = self._same_header(left, right)
            return same if op == "==" else f"(!{same})"
        if isinstance(left, UnionRef) and isinstance(right, UnionRef):
            pairs = zip(
                self.program.unions[left.name].members, self.program.unions[right.name].members, strict=True
            )
            same = " || ".join(self._same_header(HeaderRef(a), HeaderRef(b)) for a, b in pairs)
            return f"({same})" if op == "==" else f"(!({same}))"
        if self._is_varbit(left) and self._is_varbit(right):
            same = self._same_varbit(left, right)
            if op not in ("==", "!="):
                raise Unsupported(f"softswitch cannot run {op} on varbit fields")
            return same if op == "==" else f"(!{same})"
        if self.is_boolean(left) or self.is_boolean(right):
            return f"(!!{self.boolean(left)} {op} !!{self.boolean(right)})"
        a, b = self.exact(left), self.exact(right)
        low, high = min(a.low, b.low), max(a.high, b.high)
        count = max(self._holder(low, high), a.wide, b.wide)
        if not count:
            cast = "" if low >= 0 else "(s64)"
            return f"({cast}{a.code} {_COMPARE[op]} {cast}{b.code})"
        x, y = self._convert(a, count), self._convert(b, count)
        match op:
            case "==":
                return f"w{count}_eq({x}, {y})"
            case "!=":
                return f"(!w{count}_eq({x}, {y}))"
            case "<":
                return f"w{count}_lt({x}, {y})"
            case ">":
                return f"w{count}_lt({y}, {x})"
            case "<=":
                return f"(!w{count}_lt({y}, {x}))"
        return f"(!w{count}_lt({x}, {y}))"

    def _same_header(self, left: HeaderRef | Element, right: HeaderRef | Element) -> str:
        if isinstance(left, Element) or isinstance(right, Element):
            raise Unsupported("softswitch cannot compare stack elements by run-time index")
        a, b = self._slot_of(left), self._slot_of(right)
        if a.header.type != b.header.type:
            return "0"
        tests = [a.present, b.present]
        rest = a.fixed - a.varbit_at if a.varbit_room else 0
        for done, end in ((0, a.fixed - rest), (a.varbit_at + a.varbit_room, a.room if rest else 0)):
            for size in (8, 4, 2, 1):
                while end - done >= size:
                    tests.append(f"LD{8 * size}({a.base}, {done}) == LD{8 * size}({b.base}, {done})")
                    done += size
        if a.varbit_room:
            name = next(f.name for f in a.header.type.fields if f.varbit)
            tests.append(self._same_varbit(FieldRef(left.name, name), FieldRef(right.name, name)))
        return "(" + " && ".join(tests) + ")"

    def _is_varbit(self, expr: Expr) -> bool:
        return isinstance(expr, FieldRef | LastField | ElementField) and self.type_of(expr).varbit

    def _same_varbit(self, left: Expr, right: Expr) -> str:
        """Return C that compares varbit fields as numbers, ignoring leading zeros, as BMv2 does."""
        if not isinstance(left, FieldRef) or not isinstance(right, FieldRef):
            raise Unsupported("softswitch cannot compare varbit fields of stack elements by run-time index")
        a, b = self.layout.slots[left.header], self.layout.slots[right.header]

        def byte(slot: HeaderSlot) -> str:
            length = f"phv->varbit[{slot.index}]"
            return (
                f"({{ u64 at_ = {length} - 1 - i_, b_ = 0; OPAQUE(at_);"
                f" if (i_ < {length} && at_ < {slot.varbit_room})"
                f" b_ = LD8({slot.base}, {slot.varbit_at} + at_); b_; }})"
            )

        return (
            f"({{ int same_ = 1; for (u32 i_ = 0; i_ < {max(a.varbit_room, b.varbit_room)}; i_++)"
            f" if ({byte(a)} != {byte(b)}) {{ same_ = 0; break; }} same_; }})"
        )

    def _slot_of(self, ref: HeaderRef) -> HeaderSlot:
        if ref.name not in self.layout.slots:
            raise Unsupported(f"softswitch cannot compare metadata struct {ref.name}")
        return self.layout.slots[ref.name]

    # --- assignments ---

    def assign(self, target: Expr, source: Expr) -> str:
        """Return a C statement for `target = source`, where `target` is a field (BMv2's `assign`)."""
        kind = self.type_of(target)
        if kind.varbit:
            raise Unsupported(f"softswitch cannot assign a number to varbit field {kind.name}")
        if self.is_boolean(source):
            source = Op("b2d", (source,))
        if kind.saturating:
            low, high = (
                (-(1 << kind.bits - 1), (1 << kind.bits - 1) - 1)
                if kind.signed
                else (0, (1 << kind.bits) - 1)
            )
            value = self._saturated(self.exact(source), low, high)
            if kind.bits <= 64:
                code = f"(({value.code}).l[0])" if value.wide else f"(u64){value.code}"
                return self.store(target, f"({code} & {mask(kind.bits)})")
            return self.store(target, self._convert(value, limbs(kind.bits)))
        if kind.bits <= 64:
            return self.store(target, self.reduced(source, kind.bits))
        return self.store(target, self.wide(source, limbs(kind.bits)))
