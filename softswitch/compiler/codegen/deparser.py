"""Generates the deparser, and verification and update of checksums."""

from __future__ import annotations

from softswitch.compiler.codegen.actions import Actions
from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import mask
from softswitch.compiler.layout import HeaderSlot, Layout, align
from softswitch.compiler.program import (
    Unsupported,
)


class Deparser:
    """Generates `deparse`, `verify_checksums` and `update_checksums`."""

    def __init__(self, layout: Layout, actions: Actions) -> None:
        self.layout = layout
        self.program = layout.program
        self.actions = actions
        self.expressions = Expressions(layout)

    # --- deparser ---

    @property
    def out_bytes(self) -> int:
        """Bytes of all headers that may be emitted, rounded up to a power of two."""
        total = sum(self.layout.slots[n].room for n in self.program.deparse_order if n in self.layout.slots)
        size = 64
        while size < total:
            size *= 2
        return size

    def deparser(self) -> str:
        lines = [
            "INLINE void deparse(struct __sk_buff *skb, struct state *st)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            "\tu8 *out = (u8 *)st->out;",
            "\t*(volatile u32 *)&st->written = 0;",
        ]
        for name in self.program.deparse_order:
            slot = self.layout.slots[name]
            # Read the offset from memory each time, so the verifier tracks one state, not all combinations.
            lines += [
                f"\tif ({slot.valid}) {{",
                f"\t\tu32 at = *(volatile u32 *)&st->written & {self.out_bytes - 1};",
                *(f"\t\t{line}" for line in self._emit(slot)),
                f"\t\t*(volatile u32 *)&st->written = at + {slot.length};",
                "\t}",
            ]
        return "\n".join([*lines, "\t(void)phv, (void)out, (void)skb;", "}"])

    @staticmethod
    def _emit(slot: HeaderSlot) -> list[str]:
        if not slot.varbit_room:
            return [f"copy_words(out + at, {slot.base}, {align(slot.fixed, 8) // 8});"]
        lines = [
            f"copy_bytes(out + at, {slot.base}, {slot.varbit_at});",
            f"copy_many(out + at + {slot.varbit_at}, {slot.base} + {slot.varbit_at},"
            f" {slot.varbit_room // 8});",
        ]
        rest = slot.fixed - slot.varbit_at
        if rest:
            at = f"((at + {slot.varbit_at} + phv->varbit[{slot.index}]) & 0xffff)"
            lines += [
                f"u32 behind = {at};",
                "OPAQUE(behind);",
                "if (behind < OUT)",
                f"\tcopy_bytes(out + behind, {slot.base} + {slot.varbit_at + slot.varbit_room}, {rest});",
            ]
        return lines

    @property
    def out_spare(self) -> int:
        most = max((self.layout.slots[n].room for n in self.program.deparse_order), default=0)
        return align(most, 8) + 16

    # --- checksums ---

    def checksums(self) -> str:
        parts = []
        for verify in (True, False):
            lines = [
                f"INLINE void {'verify' if verify else 'update'}_checksums("
                "struct __sk_buff *skb, struct state *st)",
                "{",
                "\tstruct phv *phv = &st->phv;",
            ]
            for index, checksum in enumerate(self.program.checksums):
                if not (checksum.verify if verify else checksum.update):
                    continue
                function = self.actions.calculations[checksum.calculation]
                payload = self.program.calculations[checksum.calculation].payload
                bits = self.program.field_type(checksum.target).bits
                if bits > 64:
                    raise Unsupported(f"softswitch cannot run checksum {checksum.name} of {bits} bits")
                tests = [] if checksum.condition is None else [self.expressions.boolean(checksum.condition)]
                slot = self.layout.slots.get(checksum.target.header)
                old = self.expressions.raw(checksum.target)
                if verify:
                    tests += [slot.present] if slot else []
                    # A sum that the kernel has yet to finish cannot be wrong.
                    unless = "!sum_unfinished(skb) && " if payload else ""
                    action = [f"if ({unless}{function}(skb, st) != {old})", "\tphv->checksum_error = 1;"]
                else:
                    store = self.expressions.store(checksum.target, "sum")
                    reduce = "" if bits == 64 else f" & {mask(bits)}"
                    dirty = " phv->dirty = 1;" if slot else ""
                    made = f"{function}(skb, st)"
                    if payload:
                        pseudo = f"unfinished_{index}(skb, st)"
                        made = f"(sum_unfinished(skb) ? {pseudo} : {made})"
                    action = [
                        f"u64 sum = {made}{reduce};",
                        f"if (sum != {old}) {{ {store}{dirty} }}",
                    ]
                lines += [f"\tif ({' && '.join(tests) or '1'}) {{", *(f"\t\t{a}" for a in action), "\t}"]
            parts.append("\n".join([*lines, "\t(void)phv, (void)skb;", "}"]))
        return "\n\n".join(parts)
