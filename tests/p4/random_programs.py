"""Random P4 programs, compiled by p4c and run on both targets: what no feature program thought of.

`python -m tests.p4.random_programs --count N --seed S` writes one program after the other and compares
softswitch with BMv2 on random packets under random entries; `--keep FOLDER` keeps the programs.

The programs avoid what P4 leaves undefined: headers are made valid before they are read, variables are set
before they are used, and the values of invalid headers are never looked at.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from machine.errors import EntrainError
from p4src.compile import compile_program
from tests.p4.compile import PROGRAMS
from tests.p4.differential import Difference, Pair, shrink
from tests.p4.packets import bits, ether
from tests.p4.random_entries import RandomEntries, value
from tests.p4.random_packets import packets, payload
from tests.p4.targets import Program

WIDTHS = (
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    12,
    16,
    17,
    24,
    31,
    32,
    33,
    40,
    48,
    63,
    64,
    65,
    72,
    100,
    127,
    128,
    129,
    160,
    256,
)
ETHERTYPE = 0xB000
TABLES = 3  # in ingress
_METADATA = "inout metadata_t meta, inout standard_metadata_t std"
MATCH_KINDS = ("exact", "exact", "lpm", "ternary", "range", "optional")


@dataclass(frozen=True)
class Type:
    """bit<width> or int<width>."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass
class RandomProgram:
    """The text of one program, and the widths of the headers that its packets carry."""

    seed: int
    headers: list[list[Type]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"program {self.seed}")
        self.variables: dict[str, Type] = {}
        self._write()

    # --- expressions ---

    def constant(self, kind: Type) -> str:
        number = value(self.rng, kind.width)
        if kind.signed:
            number -= (number >> kind.width - 1) << kind.width
            return (
                f"({kind.width}s{number})"
                if number >= 0
                else f"(-{kind.width}s{-number - 1} - {kind.width}s1)"
            )
        return f"{kind.width}w{number}"

    def variable(self, kind: Type) -> str | None:
        """A field of this very type."""
        fitting = [name for name, each in self.variables.items() if each == kind]
        return self.rng.choice(fitting) if fitting else None

    def expression(self, kind: Type, depth: int = 3) -> str:
        """An expression of this type."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            found = self.variable(kind) if rng.random() < 0.8 else None
            return found or self.cast(kind) if rng.random() < 0.7 else self.constant(kind)
        choice = rng.random()
        if choice < 0.45:
            operator = rng.choice(["+", "-", "&", "|", "^", "|+|", "|-|", "+", "-"])
            if operator in ("|+|", "|-|") and kind.width == 1 and kind.signed:
                operator = "&"
            return f"({self.expression(kind, depth - 1)} {operator} {self.expression(kind, depth - 1)})"
        if choice < 0.55:
            return f"({rng.choice('~-')}{self.expression(kind, depth - 1)})"
        if choice < 0.67:
            amount = self.expression(Type(rng.choice([3, 5, 8])), depth - 1) if rng.random() < 0.5 else None
            amount = amount or str(rng.randrange(kind.width))
            return f"({self.expression(kind, depth - 1)} {rng.choice(['<<', '>>'])} {amount})"
        if choice < 0.77:
            yes, no = self.expression(kind, depth - 1), self.expression(kind, depth - 1)
            return f"({self.condition(depth - 1)} ? {yes} : {no})"
        if choice < 0.85 and not kind.signed and kind.width > 1:
            high = rng.randrange(1, kind.width)
            left, right = Type(high), Type(kind.width - high)
            return f"({self.expression(left, depth - 1)} ++ {self.expression(right, depth - 1)})"
        if choice < 0.9 and kind.width <= 64:
            return f"({self.expression(kind, depth - 1)} * {self.expression(kind, depth - 1)})"
        return self.cast(kind)

    def cast(self, kind: Type) -> str:
        """A field of any type, cast or sliced to this one."""
        name, have = self.rng.choice(list(self.variables.items()))
        if have == kind:
            return name
        if have.signed:
            same = Type(have.width)
            unsigned = f"(({same}) {name})"
            if kind.signed:
                return f"(({kind}) {name})"
            return unsigned if have.width == kind.width else f"(({kind}) {unsigned})"
        if kind.signed:
            widened = name if have.width == kind.width else f"((bit<{kind.width}>) {name})"
            return f"(({kind}) {widened})"
        if have.width > kind.width and self.rng.random() < 0.6:
            low = self.rng.randrange(have.width - kind.width + 1)
            return f"{name}[{low + kind.width - 1}:{low}]"
        return f"(({kind}) {name})"

    def condition(self, depth: int = 2) -> str:
        rng = self.rng
        if depth > 0 and rng.random() < 0.3:
            return f"({self.condition(depth - 1)} {rng.choice(['&&', '||'])} {self.condition(depth - 1)})"
        if rng.random() < 0.1:
            return f"(!{self.condition(depth - 1)})" if depth > 0 else "true"
        kind = rng.choice(list(self.variables.values()))
        operator = rng.choice(["==", "!=", "<", "<=", ">", ">="])
        return f"({self.expression(kind, 1)} {operator} {self.expression(kind, 1)})"

    # --- statements ---

    def assignment(self) -> str:
        name, kind = self.rng.choice(list(self.variables.items()))
        if not kind.signed and kind.width > 2 and self.rng.random() < 0.2:
            low = self.rng.randrange(kind.width - 1)
            high = self.rng.randrange(low, kind.width)
            return f"{name}[{high}:{low}] = {self.expression(Type(high - low + 1), 2)};"
        return f"{name} = {self.expression(kind)};"

    def statement(self, tables: Sequence[str], depth: int = 2) -> str:
        rng = self.rng
        choice = rng.random()
        if choice < 0.2 and depth:
            text = f"if {self.condition()} {{ {self.block(tables, depth - 1)} }}"
            return text + (f" else {{ {self.block(tables, depth - 1)} }}" if rng.random() < 0.5 else "")
        if choice < 0.3:
            return self.register()
        if choice < 0.36:
            return self.hash()
        if choice < 0.42:
            return (
                f"hdr.h{len(self.headers)} = hdr.h0;"
                if rng.random() < 0.5
                else f"hdr.h0 = hdr.h{len(self.headers)};"
            )
        return self.assignment()

    def block(self, tables: Sequence[str], depth: int) -> str:
        return " ".join(self.statement(tables, depth) for _ in range(self.rng.randint(1, 3)))

    def register(self) -> str:
        number = self.rng.randrange(len(self.registers))
        index = f"(bit<32>) ({self.expression(Type(8), 1)} & 15)"
        if self.rng.random() < 0.5:
            return f"reg{number}.read(meta.r{number}, {index});"
        return f"reg{number}.write({index}, {self.expression(self.registers[number], 2)});"

    def hash(self) -> str:
        algorithm = self.rng.choice(["crc16", "crc32", "csum16", "xor16", "identity"])
        if algorithm in ("csum16", "xor16"):  # over whole 16-bit words
            data = [self.expression(Type(16), 1) for _ in range(self.rng.randint(1, 3))]
        elif algorithm == "identity":
            data = [self.expression(Type(32), 1)]
        else:
            data = [self.expression(Type(self.rng.choice(WIDTHS)), 1) for _ in range(self.rng.randint(1, 4))]
        maximum = self.rng.choice(["33w0x100000000", "33w10", "33w1000"])
        base = self.rng.choice(["32w0", "32w5"])
        return f"hash(meta.digest, HashAlgorithm.{algorithm}, {base}, {{ {', '.join(data)} }}, {maximum});"

    # --- the program ---

    def _fields(self) -> list[Type]:
        """Fields of a header, filled up to whole bytes."""
        made = [
            Type(width, width > 1 and self.rng.random() < 0.2)
            for width in self.rng.sample(WIDTHS, self.rng.randint(2, 5))
        ]
        missing = -sum(kind.width for kind in made) % 8
        return [*made, Type(missing)] if missing else made

    def _table(self, number: int, available: range | None = None) -> str:
        rng = self.rng
        keys, used = [], set[str]()
        # The copy's fields have the names of the original's, and P4Info's aliases must differ.
        named = [name for name in sorted(self.variables) if not name.startswith(f"hdr.h{len(self.headers)}.")]
        for name in rng.sample(named, rng.randint(1, 3)):
            kind = self.variables[name]
            match = rng.choice(MATCH_KINDS)
            if kind.signed:
                continue
            # PI, BMv2's P4Runtime, takes no prefixes of keys that are not whole bytes.
            if (match == "lpm" and ("lpm" in used or kind.width % 8)) or (
                match == "range" and kind.width > 64
            ):
                match = "exact"
            used.add(match)
            keys.append(f"{name}: {match};")
        if not keys:
            keys = ["hdr.ethernet.src: ternary;"]
        available = available or range(self.actions)
        actions = rng.sample(available, rng.randint(1, len(available)))
        listed = " ".join(f"act{each};" for each in actions)
        return (
            f"    table t{number} {{ key = {{ {' '.join(keys)} }} actions = {{ {listed} NoAction; }}"
            f" default_action = NoAction; size = 64; counters = count{number}; }}\n"
        )

    def _apply(self, number: int, statements: Callable[[], str]) -> str:
        """Apply a table, and do something about the outcome."""
        choice = self.rng.random()
        if choice < 0.4:
            return f"        t{number}.apply();\n"
        if choice < 0.7:
            outcome = self.rng.choice(["hit", "miss"])
            return f"        if (t{number}.apply().{outcome}) {{ {statements()} }}\n"
        return (
            f"        switch (t{number}.apply().action_run) {{"
            f" NoAction: {{ {statements()} }} default: {{ {statements()} }} }}\n"
        )

    def _action(self, number: int) -> str:
        params = {f"p{n}": Type(self.rng.choice(WIDTHS)) for n in range(self.rng.randint(0, 3))}
        before = dict(self.variables)
        targets = list(before.items())
        lines = []
        for _ in range(self.rng.randint(1, 3)):
            self.variables = before | params
            name, kind = self.rng.choice(targets)
            lines.append(f"{name} = {self.expression(kind, 2)};")
        self.variables = before
        listed = ", ".join(f"{kind} {name}" for name, kind in params.items())
        return f"    action act{number}({listed}) {{ {' '.join(lines)} }}\n"

    def _write(self) -> None:
        rng = self.rng
        self.headers = [self._fields() for _ in range(rng.randint(1, 4))]
        meta = {f"meta.m{n}": Type(rng.choice(WIDTHS)) for n in range(4)}
        self.registers = [Type(rng.choice(WIDTHS)) for _ in range(2)]
        self.actions = 4
        text = ['#include "base.p4"\n']
        for number, fields in enumerate(self.headers):
            listed = " ".join(f"{kind} f{number}_{n};" for n, kind in enumerate(fields))
            text.append(f"header h{number}_t {{ {listed} }}\n")
        listed = " ".join(
            f"{self.rng.choice(['', '@field_list(1) ', '@field_list(1, 2) '])}{kind} {name[5:]};"
            for name, kind in meta.items()
        )
        registers = " ".join(f"{kind} r{n};" for n, kind in enumerate(self.registers))
        text.append(f"struct metadata_t {{ {listed} {registers} bit<32> digest; }}\n")
        listed = " ".join(f"h{n}_t h{n};" for n in range(len(self.headers)))
        # One more of the first type, for copies.
        text.append(f"struct headers_t {{ ethernet_t ethernet; {listed} h0_t h{len(self.headers)}; }}\n")
        text.append(self._parser())
        text.append("EMPTY_VERIFY\n")
        self.variables = {"hdr.ethernet.dst": Type(48), "meta.digest": Type(32), **meta}
        self.variables |= {f"meta.r{n}": kind for n, kind in enumerate(self.registers)}
        for number, fields in enumerate(self.headers):
            self.variables |= {f"hdr.h{number}.f{number}_{n}": kind for n, kind in enumerate(fields)}
        self.variables |= {f"hdr.h{len(self.headers)}.f0_{n}": kind for n, kind in enumerate(self.headers[0])}
        text.append(self._ingress())
        text.append(self._egress())
        text.append(self._update())
        text.append("DEPARSE_ALL\nSWITCH\n")
        self.text = "".join(text)

    def _parser(self) -> str:
        """Takes header after header, as long as a field of the one before says so."""
        states = [
            f"parser Parse(packet_in packet, out headers_t hdr, {_METADATA}) {{\n",
            "    state start { packet.extract(hdr.ethernet);"
            f" transition select(hdr.ethernet.ethertype) {{ {ETHERTYPE}: parse0; default: accept; }} }}\n",
        ]
        for number, fields in enumerate(self.headers):
            following = "accept"
            if number + 1 < len(self.headers):
                unsigned = [(n, kind) for n, kind in enumerate(fields) if not kind.signed]
                following = f"parse{number + 1}"
                if unsigned and self.rng.random() < 0.6:
                    n, kind = self.rng.choice(unsigned)
                    stop = value(self.rng, kind.width)
                    mask = (
                        f" &&& {kind.width}w{self.rng.getrandbits(kind.width) | 1}"
                        if self.rng.random() < 0.5
                        else ""
                    )
                    key, match = f"hdr.h{number}.f{number}_{n}", f"{kind.width}w{stop}{mask}"
                    following = f"select({key}) {{ {match}: accept; default: {following}; }}"
            end = "" if following.startswith("select") else ";"
            states.append(
                f"    state parse{number} {{ packet.extract(hdr.h{number}); transition {following}{end} }}\n"
            )
        return "".join(states) + "}\n"

    def _all_valid(self) -> str:
        """A header that was not parsed begins with zeros: what invalid ones hold is not defined."""
        return "".join(
            f"        if (!hdr.h{n}.isValid()) {{ hdr.h{n}.setValid(); }}\n"
            for n in range(len(self.headers) + 1)
        )

    def _copies(self) -> str:
        """Send the packet elsewhere, or to more than one port."""
        rng, text = self.rng, ""
        if rng.random() < 0.5:
            text += f"        if {self.condition()} {{ std.egress_spec = {rng.randint(1, 6)}; }}\n"
        if rng.random() < 0.3:
            text += f"        if {self.condition()} {{ std.mcast_grp = {rng.choice([1, 5, 9])}; }}\n"
        if rng.random() < 0.3:
            clone = (
                f"clone_preserving_field_list(CloneType.I2E, {rng.choice([1, 7, 9])}, {rng.choice([1, 2])});"
            )
            text += f"        if {self.condition()} {{ {clone} }}\n"
        if rng.random() < 0.2:
            text += f"        if {self.condition()} {{ mark_to_drop(std); }}\n"
        return text

    def _ingress(self) -> str:
        text = [
            f"control TheIngress(inout headers_t hdr, {_METADATA}) {{\n",
            *(f"    register<{kind}>(16) reg{n};\n" for n, kind in enumerate(self.registers)),
            *(f"    direct_counter(CounterType.packets_and_bytes) count{n};\n" for n in range(TABLES)),
            *(self._action(n) for n in range(self.actions)),
            *(self._table(n) for n in range(TABLES)),
            "    apply {\n        FENCE_INGRESS\n        std.egress_spec = std.ingress_port;\n",
            self._all_valid(),
        ]
        for table in range(TABLES):
            text += [f"        {self.statement([])}\n" for _ in range(self.rng.randint(1, 3))]
            text.append(self._apply(table, lambda: self.block([], 1)))
        return "".join(text) + self._copies() + "    }\n}\n"

    def _egress(self) -> str:
        text = [
            f"control TheEgress(inout headers_t hdr, {_METADATA}) {{\n",
            f"    direct_counter(CounterType.packets_and_bytes) count{TABLES};\n",
            *(self._action(self.actions + n) for n in range(2)),
            self._table(TABLES, range(self.actions, self.actions + 2)),
            "    apply {\n        FENCE_EGRESS\n",
            self._all_valid(),
            *(f"        {self.assignment()}\n" for _ in range(self.rng.randint(1, 3))),
            self._apply(TABLES, self.assignment),
        ]
        if self.rng.random() < 0.3:
            session, kept = self.rng.choice([1, 7]), self.rng.choice([1, 2])
            clone = f"clone_preserving_field_list(CloneType.E2E, {session}, {kept});"
            text.append(f"        if (std.instance_type == 0 && {self.condition()}) {{ {clone} }}\n")
        for number in range(len(self.headers) + 1):
            if self.rng.random() < 0.3:
                text.append(f"        if {self.condition(1)} {{ hdr.h{number}.setInvalid(); }}\n")
                self.variables = {
                    name: kind
                    for name, kind in self.variables.items()
                    if not name.startswith(f"hdr.h{number}.")
                }
        return "".join(text) + "    }\n}\n"

    def _update(self) -> str:
        """A checksum in place of the EtherType, over fields that are certainly there."""
        body = ""
        if self.rng.random() < 0.5:
            algorithm = self.rng.choice(["csum16", "crc16", "xor16"])
            payload_too = self.rng.choice(["", "_with_payload"]) if algorithm == "csum16" else ""
            condition, data = (
                f"hdr.ethernet.ethertype == {ETHERTYPE}",
                "{ hdr.ethernet.dst, hdr.ethernet.src }",
            )
            target = f"hdr.ethernet.ethertype, HashAlgorithm.{algorithm}"
            body = f"update_checksum{payload_too}({condition}, {data}, {target});"
        return f"control Update(inout headers_t hdr, inout metadata_t meta) {{ apply {{ {body} }} }}\n"

    def packet(self, rng: random.Random) -> bytes:
        """A packet with all headers, or with the first few."""
        listed = self.headers[
            : rng.choice([len(self.headers), len(self.headers), rng.randint(0, len(self.headers))])
        ]
        fields = [(value(rng, kind.width), kind.width) for header in listed for kind in header]
        return ether(ETHERTYPE, bits(fields) + payload(rng), dst=value(rng, 48), src=value(rng, 48))


def check(seed: int, folder: Path, count: int = 300) -> Difference | None:
    """Write, compile and compare one program; raises EntrainError where p4c does not take it."""
    made = RandomProgram(seed)
    name = f"random{seed}"
    (folder / "base.p4").write_text((PROGRAMS / "base.p4").read_text())
    source = folder / f"{name}.p4"
    source.write_text(made.text)
    compile_program(source).write(folder, name)
    with Pair(Program(name, build=folder)) as pair:
        entities = RandomEntries(pair.targets[0].client.schema.p4info, seed).all()
        pair.insert(entities)
        sent = packets(name, made.packet, random.Random(seed), count)
        found = pair.run(sent)
        if found is not None:
            return shrink(pair, entities, sent, found)
        counters = pair.counters()
        return Difference(name, entities, [], sent[-1], counters=counters) if counters else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares softswitch with BMv2 on random programs.")
    parser.add_argument("--count", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--keep", type=Path, help="a folder for the programs (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="entrain-programs-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        differ = refused = 0
        for seed in range(options.seed, options.seed + options.count):
            try:
                found = check(seed, folder)
            except EntrainError as error:
                refused += 1
                print(f"{seed}: {error}", flush=True)
                continue
            if found is not None:
                differ += 1
                print(f"{seed}: {found}", flush=True)
        print(f"{options.count} programs: {differ} differ, {refused} refused by p4c")


if __name__ == "__main__":
    main()
