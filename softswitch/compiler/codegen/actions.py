"""Generates C functions for actions.

An action that accesses registers or meters holds one lock, as in BMv2's RegisterSync, from its first such
access to its last. No helper may be called under the lock, so the time and random numbers are fetched before.
Registers that an action uses together share a lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from softswitch.compiler.codegen.primitives import STATEFUL, Primitives
from softswitch.compiler.layout import Layout, arguments, size_of
from softswitch.compiler.program import (
    Action,
    Constant,
    Primitive,
    Unsupported,
)


def stateful_names(action: Action) -> list[str]:
    """Return the registers and meters that an action accesses, once per access."""
    return [arg[1] for p in action.primitives if p.op in STATEFUL for arg in p.args if isinstance(arg, tuple)]


class Locks:
    """Assigns locks to registers and meters. Those that one action uses together share a lock."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self._parent: dict[str, str] = {}
        for action in actions:
            names = stateful_names(action)
            for name in names:
                self._join(names[0], name)
        roots = dict.fromkeys(self._root(name) for name in self._parent)
        self.index = {name: list(roots).index(self._root(name)) for name in self._parent}
        self.count = len(roots)

    def _root(self, name: str) -> str:
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def _join(self, a: str, b: str) -> None:
        self._parent[self._root(b)] = self._root(a)

    def of(self, name: str) -> int:
        """Return the lock of a register or meter. A direct meter that no action uses gets a new one."""
        if name not in self.index:
            self.index[name] = self.count
            self.count += 1
        return self.index[name]


class Actions(Primitives):
    """Generates one function per action. p4c copies an action for each table and may specialise a copy."""

    def __init__(self, layout: Layout, drop_port: int) -> None:
        super().__init__(layout, drop_port)
        self.locks = Locks(layout.program.actions)

    def can_exit(self, action: Action) -> bool:
        return any(p.op in ("exit", "assert", "assume") for p in action.primitives)

    def functions(self) -> str:
        return "\n\n".join(self._function(a) for a in self.program.actions)

    def _function(self, action: Action) -> str:
        self.expressions.action = action
        members = ["\tu64 head;"]
        for member in arguments(action).members:
            kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}.get(member.size)
            members.append(
                f"\t{kind} {member.name};" if kind else f"\tu64 {member.name}[{member.size // 8}];"
            )
        lines = [
            f"struct args_{action.id} {{",
            *members,
            "};",
            "",
            f"INLINE void action_{action.id}(struct __sk_buff *skb, struct state *st,",
            f"\t\t\tconst struct args_{action.id} *a)",
            "{",
            "\tstruct phv *phv = &st->phv;",
            *(f"\t{line}" for line in self._body(action)),
            "\t(void)phv, (void)a, (void)skb;",
            "}",
        ]
        self.expressions.action = None
        return "\n".join(lines)

    def _body(self, action: Action) -> list[str]:
        before: list[str] = []
        statements: list[list[str]] = []
        jumps = {self._target(p) for p in action.primitives if p.op in ("_jump", "_jump_if_zero")}
        touched = any(self._touches_packet(p) for p in action.primitives)
        if touched:
            before.append("phv->dirty = 1;")
        accesses = stateful_names(action)
        guarded = len(accesses) > 1 or any(
            p.op in ("register_write", "execute_meter") for p in action.primitives
        )
        if any(p.op == "execute_meter" for p in action.primitives):
            before.append("u64 now_us = time_us(st);")
        for index, primitive in enumerate(action.primitives):
            if primitive.op == "modify_field_rng_uniform":
                before.append(f"u64 random_{index} = random64();")
            statements.append(self._primitive(primitive, index))
        first, last = 0, len(statements) - 1
        if guarded:
            stateful = [i for i, p in enumerate(action.primitives) if p.op in STATEFUL]
            if not jumps:
                first, last = stateful[0], stateful[-1]
            before += [
                f"u32 lock_key = {self.locks.of(accesses[0])};",
                "struct lock *lock = bpf_map_lookup_elem(&locks, &lock_key);",
                "if (!lock)",
                "\treturn;",
            ]
        lines = list(before)
        for index, body in enumerate(statements):
            if guarded and index == first:
                lines.append("bpf_spin_lock(&lock->lock);")
            if index in jumps:
                lines.append(f"at_{index}: __attribute__((unused));")
            lines += body
            if guarded and index == last:
                if jumps:
                    lines.append("at_end: __attribute__((unused));")
                lines.append("bpf_spin_unlock(&lock->lock);")
        if jumps and not guarded:
            lines.append("at_end: __attribute__((unused));")
        if any(t >= len(statements) for t in jumps):
            lines = [line.replace(f"goto at_{len(statements)};", "goto at_end;") for line in lines]
        return lines

    @staticmethod
    def _target(primitive: Primitive) -> int:
        target = primitive.args[-1]
        if not isinstance(target, Constant):
            raise Unsupported(f"softswitch cannot run a computed jump at {primitive.source}")
        return target.value

    def shared_members(self, cpus: int) -> list[tuple[str, str, int]]:
        """Return name, declaration and bytes of registers, counters and meters in `struct shared`."""
        members = []
        for register_name, i in self.registers.items():
            register = self.program.registers[register_name]
            size = size_of(register.bits)
            kind = {1: "u8 %s", 2: "u16 %s", 4: "u32 %s", 8: "u64 %s"}.get(size, "u64 %s")
            tail = f"[{size // 8}]" if size > 8 else ""
            members.append((f"r{i}", f"{kind}[{register.size}]{tail}", size * register.size))
        for counter_name, i in self.counters.items():
            counter = self.program.counters[counter_name]
            rows = counter.size if counter.table is None else self.program.tables[counter.table].size
            rows = max(rows, 1)
            members.append((f"c{i}", f"struct counter %s[CPUS][{rows}]", 16 * rows * cpus))
        for meter_name, i in self.meters.items():
            meter = self.program.meters[meter_name]
            rows = meter.size if meter.table is None else self.program.tables[meter.table].size
            rows = max(rows, 1)
            members.append((f"e{i}", f"struct meter %s[{rows}]", METER_BYTES * rows))
        return members


METER_BYTES = 64  # struct meter in runtime/state.h
