"""Generates C functions for calculations (hashes and checksums).

A calculation's input is a bit string: fields and constants end to end, without the fields of invalid headers
(BMv2's BufBuilder). The generated function steps through the bytes without storing the string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import mask
from softswitch.compiler.layout import HeaderSlot, Layout, field_offset
from softswitch.compiler.program import Calculation, FieldRef, HeaderRef, Unsupported

# by name in the JSON: prefix of the functions in runtime/hashes.h
ALGORITHMS = {
    "crc16": "crc16",
    "crc16_custom": "crc16",  # BMv2's custom CRCs default to the standard parameters
    "crc32": "crc32",
    "crc32_custom": "crc32",
    "crcCCITT": "crc_ccitt",
    "csum16": "csum16",
    "cksum16": "csum16",
    "xor16": "xor16",
    "identity": "identity",
    "random": "random",
}
_MOST_COMBINATIONS = 4


@dataclass(frozen=True)
class _Piece:
    """A part of the input: bits of a slot (`base`, `offset`), bits of C `code`, or a slot's varbit."""

    bits: int
    slot: HeaderSlot | None
    offset: int = 0
    code: str = ""
    varbit: bool = False


class Hashes:
    """Generates one C function per calculation."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.expressions = Expressions(layout)

    def function(self, name: str, calculation: Calculation) -> str:
        """Return C for `u64 name(struct __sk_buff *skb, struct state *st)`. Only the payload needs skb."""
        algorithm = ALGORITHMS.get(calculation.algorithm)
        if algorithm is None:
            raise Unsupported(
                f"softswitch cannot run hash algorithm {calculation.algorithm!r} ({calculation.name})"
            )
        if calculation.payload and algorithm != "csum16":
            raise Unsupported(
                f"softswitch cannot run {calculation.algorithm} over the payload ({calculation.name})"
            )
        lines = [
            f"INLINE u64 {name}(struct __sk_buff *skb, struct state *st)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            f"\tstruct hash h = {algorithm}_begin();",
            *(f"\t{line}" for line in self._body(algorithm, self._pieces(calculation))),
        ]
        if calculation.payload:
            lines.append("\tcsum16_payload(&h, skb, st);")
        lines += ["\t(void)phv;", f"\treturn {algorithm}_end(&h);", "}"]
        return "\n".join(lines)

    def unfinished(self, name: str, calculation: Calculation, target: FieldRef) -> str:
        """Return C for `u64 name(skb, st)`: a checksum field's value before the kernel completes the sum.

        That is the sum, not complemented, of the fields before the header of `target`: the pseudo header.
        """
        order = {header: i for i, header in enumerate(self.layout.program.deparse_order)}
        first = order.get(target.header, 0)

        def before(item: FieldRef | HeaderRef | tuple[int, int]) -> bool:
            header = item.name if isinstance(item, HeaderRef) else getattr(item, "header", None)
            return header is None or header not in order or order[header] < first

        kept = tuple(i for i in calculation.inputs if before(i))
        pseudo = Calculation(calculation.name, calculation.algorithm, kept, False)
        return self.function(name, pseudo).replace("csum16_end(&h)", "csum16_fold(h.value)")

    def _pieces(self, calculation: Calculation) -> list[_Piece]:
        pieces: list[_Piece] = []
        for item in calculation.inputs:
            if isinstance(item, HeaderRef):
                slot = self.layout.slots[item.name]
                kind = slot.header.type
                pieces += [p for f in kind.fields for p in self._field(FieldRef(item.name, f.name))]
            elif isinstance(item, FieldRef):
                pieces += self._field(item)
            else:
                value, bits = item
                while bits > 0:
                    take = bits % 64 or 64
                    bits -= take
                    pieces.append(_Piece(take, None, code=f"{(value >> bits) & ((1 << take) - 1):#x}ULL"))
        merged: list[_Piece] = []
        for piece in pieces:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.slot is not None
                and last.slot is piece.slot
                and not last.varbit
                and not piece.varbit
                and last.offset + last.bits == piece.offset
            ):
                merged[-1] = _Piece(last.bits + piece.bits, last.slot, last.offset)
            else:
                merged.append(piece)
        return merged

    def _field(self, ref: FieldRef) -> list[_Piece]:
        kind = self.layout.program.field_type(ref)
        if ref in self.layout.metadata:
            name = f"phv->{self.layout.metadata[ref]}"
            if kind.bits <= 64:
                return [_Piece(kind.bits, None, code=f"(u64){name}")]
            count = (kind.bits + 63) // 64
            top = kind.bits - 64 * (count - 1)
            return [
                _Piece(top if i == count - 1 else 64, None, code=f"{name}[{i}]")
                for i in reversed(range(count))
            ]
        slot = self.layout.slots[ref.header]
        if ref.field == "$valid$":
            return [_Piece(1, None, code=f"(u64){slot.valid}")]
        return [_Piece(kind.bits, slot, field_offset(slot.header.type, ref.field), varbit=kind.varbit)]

    def _body(self, algorithm: str, pieces: Sequence[_Piece]) -> list[str]:
        groups: list[tuple[HeaderSlot | None, list[_Piece]]] = []
        for piece in pieces:
            if groups and groups[-1][0] is piece.slot:
                groups[-1][1].append(piece)
            else:
                groups.append((piece.slot, [piece]))
        if all(sum(p.bits for p in group) % 8 == 0 for _, group in groups[:-1]):
            lines = []
            for slot, group in groups:
                body = self._steps(algorithm, group)
                lines += [f"if ({slot.present}) {{", *(f"\t{b}" for b in body), "}"] if slot else body
            return lines
        slots = list({p.slot.index: p.slot for p in pieces if p.slot}.values())
        if len(slots) > _MOST_COMBINATIONS:
            raise Unsupported("softswitch cannot run a hash over many headers whose fields end within bytes")
        lines = []
        for combination in product((True, False), repeat=len(slots)):
            present = {s.index for s, valid in zip(slots, combination, strict=True) if valid}
            tests = [s.present if s.index in present else f"!{s.present}" for s in slots]
            chosen = [p for p in pieces if p.slot is None or p.slot.index in present]
            lines += [
                f"if ({' && '.join(tests)}) {{",
                *(f"\t{b}" for b in self._steps(algorithm, chosen)),
                "}",
            ]
        return lines

    def _steps(self, algorithm: str, pieces: Sequence[_Piece]) -> list[str]:
        lines: list[str] = []
        run: list[_Piece] = []
        for piece in pieces:
            if not piece.varbit:
                run.append(piece)
                continue
            lines += self._fixed(algorithm, run)
            run = []
            assert piece.slot is not None
            slot = piece.slot
            lines += [
                f"for (u32 i = 0; i < {slot.varbit_room}; i++) {{",
                f"\tif (i >= phv->varbit[{slot.index}])",
                "\t\tbreak;",
                f"\t{algorithm}_byte(&h, LD8({slot.base}, {slot.varbit_at} + i));",
                "}",
            ]
        return lines + self._fixed(algorithm, run)

    def _fixed(self, algorithm: str, run: Sequence[_Piece]) -> list[str]:
        bits = sum(p.bits for p in run)
        lines, at = [], 0
        if algorithm == "csum16":
            while bits - at >= 32:
                lines.append(f"csum16_word(&h, {self._gather(run, at, 32)});")
                at += 32
        while at < bits:
            lines.append(f"{algorithm}_byte(&h, {self._gather(run, at, 8)});")
            at += 8
        return lines

    def _gather(self, run: Sequence[_Piece], at: int, count: int) -> str:
        """Return C for the `count` bits from bit `at` of the run, with zeros beyond its end."""
        parts, position = [], 0
        for piece in run:
            first, last = max(at, position), min(at + count, position + piece.bits)
            if first < last:
                take = last - first
                skip = first - position
                if piece.slot:
                    code = self.expressions.load_bits(piece.slot.base, piece.offset + skip, take)
                else:
                    down = piece.bits - skip - take
                    code = f"({piece.code} >> {down})" if down else piece.code
                    if skip:
                        code = f"({code} & {mask(take)})"
                up = at + count - last
                parts.append(f"{code} << {up}" if up else code)
            position += piece.bits
        return " | ".join(f"({p})" for p in parts)


def tables() -> str:
    """Return C tables of every byte's remainder, for the CRCs."""

    def reflected(polynomial: int) -> list[int]:
        values = []
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
            values.append(byte)
        return values

    def plain(polynomial: int) -> list[int]:
        values = []
        for byte in range(256):
            rest = byte << 8
            for _ in range(8):
                rest = (rest << 1 ^ (polynomial if rest & 0x8000 else 0)) & 0xFFFF
            values.append(rest)
        return values

    def declare(kind: str, name: str, values: list[int]) -> str:
        return f"static const __{kind} {name}[256] = {{{', '.join(f'{v:#x}' for v in values)}}};"

    return "\n".join(
        [
            declare("u16", "crc16_table", reflected(0xA001)),
            declare("u32", "crc32_table", reflected(0xEDB88320)),
            declare("u16", "crc_ccitt_table", plain(0x1021)),
        ]
    )
