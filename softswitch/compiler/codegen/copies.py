"""Generates code for fields that a packet's copies preserve, and for digests."""

from __future__ import annotations

from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.layout import Layout, limbs
from softswitch.compiler.program import (
    Constant,
    Expr,
    FieldRef,
    LearnList,
    Unsupported,
)


class Copies:
    """Generates `preserve` and `learn`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.program = layout.program
        self.expressions = Expressions(layout)

    def preserve(self) -> str:
        """Return C that copies the fields of a field list from a stashed packet."""
        lines = [
            "INLINE void preserve(struct phv *phv, const struct phv *from, u32 list)",
            "{",
            "\tswitch (list) {",
        ]
        for number, fields in self.program.field_lists.items():
            lines.append(f"\tcase {number}:")
            for ref in fields:
                lines += [f"\t\t{line}" for line in self._preserve(ref)]
            lines.append("\t\tbreak;")
        return "\n".join([*lines, "\t}", "}"])

    def _preserve(self, ref: FieldRef) -> list[str]:
        if ref in self.layout.metadata:
            name = self.layout.metadata[ref]
            bits = self.program.field_type(ref).bits
            if bits <= 64:
                return [f"phv->{name} = from->{name};"]
            return [f"phv->{name}[{i}] = from->{name}[{i}];" for i in range(limbs(bits))]
        raise Unsupported(f"softswitch cannot preserve header field {ref.header}.{ref.field} of a field list")

    def digests(self) -> str:
        lines = [
            "INLINE void learn(struct state *st)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            "\tstruct event *head = (struct event *)st->digest;",
            "\tu64 *values = st->digest + sizeof(*head) / 8;",
            "\tu32 words = 0;",
            "\tswitch (phv->digest_list) {",
        ]
        for number, learn in self.program.learn_lists.items():
            lines.append(f"\tcase {number}:")
            at = 0
            for element in learn.elements:
                code, count = self._digest_words(element)
                lines += [f"\t\t{line}" for line in code.replace("@", str(at)).split("\n")]
                at += count
            lines += [f"\t\twords = {at};", "\t\tbreak;"]
        return "\n".join(
            [
                *lines,
                "\tdefault:",
                "\t\treturn;",
                "\t}",
                "\t*head = (struct event){",
                "\t\t.type = EVENT_DIGEST, .kind = phv->digest_list, .length = 8 * words,",
                "\t};",
                "\tif (bpf_ringbuf_output(&events, head, sizeof(*head) + 8 * words, 0))",
                "\t\ttally(DROPPED_DIGEST);",
                "}",
            ]
        )

    def _digest_words(self, element: Expr) -> tuple[str, int]:
        bits = (
            element.value.bit_length()
            if isinstance(element, Constant)
            else self.expressions.type_of(element).bits
        )
        if bits <= 64:
            return f"values[@] = {self.expressions.reduced(element, max(bits, 1))};", 1
        count = limbs(bits)
        stores = " ".join(f"(values + @)[{i}] = w_.l[{i}];" for i in range(count))
        return f"{{ struct w{count} w_ = {self.expressions.wide(element, count)}; {stores} }}", count

    @property
    def digest_words(self) -> int:
        return 4 + max(
            (sum(self.words_of(e) for e in x.elements) for x in self.program.learn_lists.values()), default=0
        )

    def words_of(self, element: Expr) -> int:
        if isinstance(element, Constant):
            return max(1, limbs(element.value.bit_length()))
        return max(1, limbs(self.expressions.type_of(element).bits))

    def digest_layout(self, learn: LearnList) -> tuple[int, ...]:
        """Return the number of 64-bit words of each value of a digest."""
        return tuple(self.words_of(e) for e in learn.elements)
