"""Generates match-action tables: building the key, lookup, and control flow.

| keys | lookup |
|---|---|
| none | none: the default action |
| exact | hash map |
| one LPM, others exact | LPM trie over the exact bytes, then the prefix |
| ternary | tuple-space search: masks ordered by their best priority, one hash map for all |
| range | rows in order of priority, the first that matches |

The last two find a slot number, which is the entry's index in shared memory. `TableLayout` tells the datapath
how to pack keys and entries.
"""

from __future__ import annotations

from collections.abc import Callable

from softswitch.compiler.codegen.actions import Actions
from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import hexadecimal
from softswitch.compiler.layout import Layout, Member, arguments, limbs, size_of
from softswitch.compiler.program import (
    Action,
    Calculation,
    Conditional,
    DirectCall,
    Key,
    Node,
    Pipeline,
    Table,
    Unsupported,
)
from softswitch.compiler.table_layout import ProfileLayout, TableLayout, table_layout

Following = Callable[[str | None], str]
CalculationWriter = Callable[[str, Calculation], str]


class Tables:
    """Generates the two pipelines."""

    def __init__(self, layout: Layout, actions: Actions) -> None:
        self.layout = layout
        self.program = layout.program
        self.actions = actions
        self.expressions = Expressions(layout)
        self.tables = {name: table_layout(i, t) for i, (name, t) in enumerate(self.program.tables.items())}
        self.profiles: dict[str, ProfileLayout] = {}
        for i, (name, profile) in enumerate(self.program.profiles.items()):
            using = [t for t in self.program.tables.values() if t.profile == name]
            entry = max((arguments(a).size for t in using for a in t.actions.values()), default=8)
            size = profile.size
            self.profiles[name] = ProfileLayout(i, profile, max(entry, 8), size, 16, size, 4 * size + 1024)

    # --- declarations ---

    def shared_members(self) -> list[tuple[str, str, int]]:
        members: list[tuple[str, str, int]] = []
        for t in self.tables.values():
            if not t.table.default_const:
                words = 1 + 2 * (t.default_bytes // 8)
                members.append((f"d{t.index}", f"u64 %s[{words}]", 8 * words))
            if t.method in ("ternary", "range"):
                words = t.entry_bytes // 8 * (t.slots + 1)
                members.append((f"t{t.index}", f"u64 %s[{words}]", 8 * words))
                words = 1 + 2 * t.list_words
                members.append((f"o{t.index}", f"u64 %s[{words}]", 8 * words))
        for p in self.profiles.values():
            members.append((f"n{p.index}", f"u32 %s[{p.members}]", 4 * p.members))
            words = p.entry_bytes // 8 * (p.members + p.spare)
            members.append((f"b{p.index}", f"u64 %s[{words}]", 8 * words))
            if p.profile.algorithm is not None:
                members.append((f"g{p.index}", f"u64 %s[{p.groups}]", 8 * p.groups))
                members.append((f"l{p.index}", f"u32 %s[{p.pool}]", 4 * p.pool))
        return members

    def maps(self) -> str:
        lines = []
        for t in self.tables.values():
            kind, flags, key, value = "BPF_MAP_TYPE_HASH", "", t.key.size, t.entry_bytes
            if t.method == "lpm":
                kind, flags = "BPF_MAP_TYPE_LPM_TRIE", "BPF_F_NO_PREALLOC"
            elif t.method == "ternary":
                key, value = 8 + 8 * t.words, 16
            elif t.method in ("none", "range"):
                continue
            if t.method != "lpm" and t.slots > 65536:
                flags = "BPF_F_NO_PREALLOC"
            lines += [
                "struct {",
                f"\t__uint(type, {kind});",
                f"\t__uint(max_entries, {t.slots});",
                f"\t__uint(key_size, {key});",
                f"\t__uint(value_size, {value});",
                *([f"\t__uint(map_flags, {flags});"] if flags else []),
                f'}} table_{t.index} SEC(".maps");',
                "",
            ]
        return "\n".join(lines)

    @property
    def key_bytes(self) -> int:
        return max((16 + 8 * t.words for t in self.tables.values()), default=16)

    def functions(self, calculation: CalculationWriter) -> str:
        """Return C for search callbacks and selectors."""
        parts = [self._search(t) for t in self.tables.values() if t.method in ("ternary", "range")]
        for p in self.profiles.values():
            parts.append(self._member(p))
            if p.profile.algorithm is not None:
                made = Calculation(p.profile.name, p.profile.algorithm, p.profile.inputs, False)
                parts.append(calculation(f"select_{p.index}", made))
                parts.append(self._group(p))
        return "\n\n".join(parts)

    def _search(self, t: TableLayout) -> str:
        if t.method == "ternary":
            body = [
                f"\tconst u64 *row = list + 1 + i * {t.row_words};",
                "\tif (row[0] <= st->best)",
                "\t\treturn 1;",
                "\tu64 *masked = (u64 *)st->masked;",
                "\tmasked[0] = row[1];",
                *(f"\tmasked[{w + 1}] = key[{w}] & row[{w + 2}];" for w in range(t.words)),
                f"\tconst u64 *found = bpf_map_lookup_elem(&table_{t.index}, masked);",
                "\tif (found && found[0] > st->best) {",
                "\t\tst->best = found[0];",
                "\t\tst->slot = found[1];",
                "\t}",
                "\treturn 0;",
            ]
            rows = t.masks
        else:
            tests = [f"(key[{w}] & row[{t.words + w + 1}]) == row[{w + 1}]" for w in range(t.words)]
            for number, i in enumerate(t.ranges):
                member = t.key.members[i]
                value = f"*(const u{8 * member.size} *)((const u8 *)key + {member.offset})"
                at = 1 + 2 * t.words + 2 * number
                tests += [f"{value} >= row[{at}]", f"{value} <= row[{at + 1}]"]
            body = [
                f"\tconst u64 *row = list + 1 + i * {t.row_words};",
                f"\tif ({' && '.join(tests)}) {{",
                "\t\tst->slot = row[0];",
                "\t\treturn 1;",
                "\t}",
                "\treturn 0;",
            ]
            rows = t.slots
        return "\n".join(
            [
                f"static long search_{t.index}(u32 index, struct search *search)",
                "{",
                "\tstruct state *st = search->st;",
                "\tconst u64 *key = (const u64 *)st->key;",
                f"\tconst u64 *list = shared.o{t.index} + 1 + (search->half & 1) * {t.list_words};",
                "\tu64 i = index;",
                "\tOPAQUE(i);",
                f"\tif (i >= {rows})",
                "\t\treturn 1;",
                *body,
                "}",
            ]
        )

    def _member(self, p: ProfileLayout) -> str:
        words = p.entry_bytes // 8
        return "\n".join(
            [
                f"INLINE const u8 *member_{p.index}(u64 member)",
                "{",
                f"\tif (member >= {p.members})",
                "\t\treturn 0;",
                "\tOPAQUE(member);",
                f"\tu64 place = shared.n{p.index}[member];",
                f"\tif (place >= {p.members + p.spare})",
                "\t\treturn 0;",
                "\tOPAQUE(place);",
                f"\treturn (const u8 *)(shared.b{p.index} + place * {words});",
                "}",
            ]
        )

    def _group(self, p: ProfileLayout) -> str:
        return "\n".join(
            [
                f"INLINE const u8 *group_{p.index}(struct __sk_buff *skb, struct state *st, u64 group)",
                "{",
                f"\tif (group >= {p.groups})",
                "\t\treturn 0;",
                "\tOPAQUE(group);",
                f"\tu64 list = shared.g{p.index}[group];",
                "\tu32 count = list;",
                "\tif (!count)",
                "\t\treturn 0;",
                f"\tu64 at = (list >> 32) + select_{p.index}(skb, st) % count;",
                "\tOPAQUE(at);",
                f"\tif (at >= {p.pool})",
                "\t\treturn 0;",
                f"\treturn member_{p.index}(shared.l{p.index}[at]);",
                "}",
            ]
        )

    # --- pipelines ---

    def pipeline(self, pipeline: Pipeline) -> str:
        """Return C for `void <name>(struct __sk_buff *skb, struct state *st)`."""
        labels = {name: f"node_{i}" for i, name in enumerate(pipeline.nodes)}

        def following(name: str | None) -> str:
            return f"goto {labels[name]};" if name is not None else "goto end;"

        reached: list[str] = []
        todo = [pipeline.first] if pipeline.first is not None else []
        while todo:
            name = todo.pop()
            if name is None or name in reached:
                continue
            reached.append(name)
            todo += _successors(pipeline.nodes[name])
        lines = [
            f"INLINE void {pipeline.name}(struct __sk_buff *skb, struct state *st)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            "\tu8 *key = (u8 *)st->key;",
            f"\t{following(pipeline.first)}",
        ]
        for name in reached:
            node = pipeline.nodes[name]
            lines += [f"{labels[name]}: __attribute__((unused))", "\t{"]
            match node:
                case Conditional():
                    test = self.expressions.boolean(node.condition)
                    body = [f"if ({test})", f"\t{following(node.true_next)}", following(node.false_next)]
                case DirectCall():
                    body = [*self._call(node.action, "0"), following(node.next)]
                case Table():
                    body = self._table(self.tables[name], following)
            lines += [*(f"\t{line}" for line in body), "\t}"]
        return "\n".join([*lines, "end: __attribute__((unused))", "\t(void)skb, (void)phv, (void)key;", "}"])

    def _call(self, action: Action, entry: str) -> list[str]:
        lines = [f"action_{action.id}(skb, st, (const struct args_{action.id} *){entry});"]
        if self.actions.can_exit(action):
            lines += ["if (phv->exits)", "\tgoto end;"]
        return lines

    def _next(self, table: Table, action: str | None, hit: bool) -> str | None:
        if table.by_outcome:
            return table.next_hit if hit else table.next_miss
        if action is None:
            return table.default_next
        return table.next_by_action.get(action, table.default_next)

    def _table(self, t: TableLayout, following: Following) -> list[str]:
        table = t.table
        if t.method == "none":
            return self._miss(t, following, [])
        lines = [*self._key(t), "const u8 *e = 0;", *self._lookup(t)]
        lines += ["if (!e) {", *(f"\t{line}" for line in self._miss(t, following, ["\t"])), "}"]
        if table.direct_counter or table.direct_meter:
            lines.append("u64 slot = RD32(e, 4);")
        if table.direct_counter:
            counter = next(i for i, c in enumerate(self.program.counters.values()) if c.table == table.name)
            lines += [
                "{",
                "\tu64 i_ = slot;",
                "\tu32 cpu_ = st->cpu;",
                "\tOPAQUE(i_);",
                f"\tif (cpu_ < CPUS && i_ < {max(table.size, 1)})",
                f"\t\tcount(shared.c{counter}[cpu_] + i_, st);",
                "}",
            ]
        if table.direct_meter:
            lines += self._direct_meter(table)
        if table.profile:
            p = self.profiles[table.profile].index
            if self.profiles[table.profile].profile.algorithm is not None:
                lines.append(f"e = RD32(e, 0) ? group_{p}(skb, st, RD32(e, 8)) : member_{p}(RD32(e, 8));")
            else:
                lines.append(f"e = member_{p}(RD32(e, 8));")
            lines += ["if (!e)", f"\t{following(self._next(table, None, True))}"]
        return [*lines, *self._dispatch(t, following, True, "e")]

    def _dispatch(self, t: TableLayout, following: Following, hit: bool, entry: str) -> list[str]:
        lines = [f"switch (RD32({entry}, 0)) {{"]
        for name, action in t.table.actions.items():
            lines += [
                f"case {self.layout.action_code[name]}:",
                *(f"\t{line}" for line in self._call(action, entry)),
                f"\t{following(self._next(t.table, name, hit))}",
            ]
        return [*lines, "}", following(self._next(t.table, None, hit))]

    def _miss(self, t: TableLayout, following: Following, _: list[str]) -> list[str]:
        table = t.table
        if table.default_const:
            action = table.default_action
            assert action is not None
            entry = "0"
            lines = []
            if action.params:
                values = []
                for member, value in zip(arguments(action).members, table.default_args, strict=True):
                    parts = [hexadecimal(value >> 64 * i) for i in range(limbs(member.bits))]
                    values.append(parts[0] if size_of(member.bits) <= 8 else f"{{{', '.join(parts)}}}")
                lines.append(f"static const struct args_{action.id} fixed = {{0, {', '.join(values)}}};")
                entry = "&fixed"
            return [*lines, *self._call(action, entry), following(self._next(table, action.name, False))]
        words = t.default_bytes // 8
        return [
            f"const u8 *miss = (const u8 *)(shared.d{t.index} + 1 + (shared.d{t.index}[0] & 1) * {words});",
            *self._dispatch(t, following, False, "miss"),
        ]

    def _direct_meter(self, table: Table) -> list[str]:
        assert table.direct_meter is not None
        meter = self.program.meters[table.direct_meter]
        index = list(self.program.meters).index(table.direct_meter)
        amount = "phv->arrived" if meter.unit == "bytes" else "phv->segments"
        assert meter.target is not None
        store = self.expressions.store(meter.target, "colour")
        return [
            "{",
            f"\tu32 lock_key = {self.actions.locks.of(table.direct_meter)};",
            "\tstruct lock *lock = bpf_map_lookup_elem(&locks, &lock_key);",
            "\tu64 now_us = time_us(st), i_ = slot, colour = 0;",
            "\tOPAQUE(i_);",
            f"\tif (lock && i_ < {max(table.size, 1)}) {{",
            "\t\tbpf_spin_lock(&lock->lock);",
            f"\t\tcolour = meter_execute(&shared.e{index}[i_], now_us, {amount});",
            "\t\tbpf_spin_unlock(&lock->lock);",
            f"\t\t{store}",
            "\t}",
            "}",
        ]

    # --- keys ---

    def _key(self, t: TableLayout) -> list[str]:
        lines = []
        if t.method == "lpm":
            lpm = next(i for i, k in enumerate(t.table.keys) if k.kind == "lpm")
            whole = 8 * (t.key.members[lpm].offset - 4) + t.table.keys[lpm].bits
            lines.append(f"WR32(key, 0, {whole});")
            for key, member in zip(t.table.keys, t.key.members, strict=True):
                size = (key.bits + 7) // 8
                shift = 8 * size - key.bits if key.kind == "lpm" else 0
                lines += self._store_bytes(key, member.offset, size, shift)
            return lines
        if t.key.size % 8 or sum(size_of(k.bits) for k in t.table.keys) != t.key.size:
            lines.append(f"WR64(key, {8 * (t.words - 1)}, 0);")
        for key, member in zip(t.table.keys, t.key.members, strict=True):
            lines += self._store_native(key, member)
        return lines

    def _value(self, key: Key, count: int) -> str:
        """Return C for a masked key field: 0 if its header is invalid (BMv2's MatchKeyBuilder)."""
        if count:
            code = self.expressions.wide(key.target, count)
            if key.mask is not None:
                parts = [hexadecimal(key.mask >> 64 * i) for i in range(count)]
                code = f"w{count}_and({code}, (struct w{count}){{{{{', '.join(parts)}}}}})"
        else:
            code = self.expressions.reduced(key.target, key.bits)
            if key.mask is not None:
                code = f"({code} & {hexadecimal(key.mask)})"
        slot = self.layout.slots.get(key.target.header)
        if slot is None or key.target.field == "$valid$":
            return code
        return (
            f"({slot.present} ? {code} : 0)"
            if not count
            else f"w{count}_pick({slot.present}, {code}, w{count}_u(0))"
        )

    def _store_native(self, key: Key, member: Member) -> list[str]:
        if member.size <= 8:
            return [f"WR{8 * member.size}(key, {member.offset}, {self._value(key, 0)});"]
        count = limbs(key.bits)
        stores = " ".join(f"WR64(key, {member.offset + 8 * i}, w_.l[{i}]);" for i in range(count))
        return [f"{{ struct w{count} w_ = {self._value(key, count)}; {stores} }}"]

    def _store_bytes(self, key: Key, offset: int, size: int, shift: int) -> list[str]:
        if size <= 8:
            code = self._value(key, 0)
            code = f"({code} << {shift})" if shift else code
            return [self.expressions.store_bits("key", 8 * offset, 8 * size, code)]
        if shift:
            raise Unsupported(
                f"softswitch cannot run LPM key {key.name}: {key.bits} bits are not whole bytes"
            )
        count = limbs(key.bits)
        return [self.expressions.store_wide("key", 8 * offset, 8 * size, self._value(key, count), count)]

    def _lookup(self, t: TableLayout) -> list[str]:
        if t.method in ("exact", "lpm"):
            return [f"e = bpf_map_lookup_elem(&table_{t.index}, key);"]
        words = t.entry_bytes // 8
        none = "st->slot = ~0ULL;"
        best = ["st->best = 0;"] if t.method == "ternary" else []
        return [
            "{",
            *(f"\t{b}" for b in best),
            f"\t{none}",
            f"\tu64 half = shared.o{t.index}[0] & 1;",
            "\tstruct search search = {.st = st, .half = half};",
            f"\tu32 rows = shared.o{t.index}[1 + half * {t.list_words}];",
            f"\tbpf_loop(rows, search_{t.index}, &search, 0);",
            "\tu64 slot_ = st->slot;",
            f"\tif (slot_ < {t.slots + 1}) {{",
            "\t\tOPAQUE(slot_);  /* keeps the compiler from adding before the check */",
            f"\t\te = (const u8 *)(shared.t{t.index} + slot_ * {words});",
            "\t}",
            "}",
        ]


def _successors(node: Node) -> list[str]:
    match node:
        case Conditional():
            found = [node.true_next, node.false_next]
        case DirectCall():
            found = [node.next]
        case Table():
            found = [node.next_hit, node.next_miss, node.default_next, *node.next_by_action.values()]
    return [name for name in found if name is not None]
