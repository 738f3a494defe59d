"""Compile a program to C, and the C to a BPF object.

No name from the program reaches the C, not even in a comment. The program comes from a controller, and a name
could close the comment and inject code. Objects are numbered in the order of the JSON, and actions by id, so
programs that differ only in names compile to the same C.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebpf import compile_bpf
from machine import cache
from machine.state import locked
from softswitch.compiler.codegen.actions import Actions
from softswitch.compiler.codegen.copies import Copies
from softswitch.compiler.codegen.deparser import Deparser
from softswitch.compiler.codegen.hashes import Hashes, tables
from softswitch.compiler.codegen.parser import Parser, value_set_words
from softswitch.compiler.codegen.tables import Tables
from softswitch.compiler.codegen.traffic import Traffic
from softswitch.compiler.ir import refusing_damage
from softswitch.compiler.layout import Layout, SharedArea, align, shared_area
from softswitch.compiler.program import Program
from softswitch.compiler.table_layout import ProfileLayout, TableLayout

RUNTIME = Path(__file__).parent / "runtime"
_CACHED = 200
"""Number of compiled programs in the cache."""
IFINDICES = 65536  # interfaces with a lower index are in an array, the others in a hash map
LOOP_PORT = 0xFFFE
MOST_PORTS, PORT_BYTES = 512, 24  # runtime/types.h
_STATISTIC = re.compile(r"enum statistic {(.*?)STATISTICS", re.DOTALL)
STATISTICS = tuple(
    _STATISTIC.findall((RUNTIME / "types.h").read_text(encoding="utf-8"))[0].lower().replace(",", " ").split()
)
"""Names of the switch's own counters, in the order of their definition in `runtime/types.h`.

They count packets that the switch cannot accept, parse, queue or rewrite. Drops by the P4 program's own rules
are in the program's own counters.
"""


@dataclass(frozen=True)
class Code:
    """A program in C, and the layouts by which the datapath accesses it."""

    source: str
    shared: SharedArea
    layout: Layout
    actions: Actions
    tables: Mapping[str, TableLayout]
    profiles: Mapping[str, ProfileLayout]
    digests: Mapping[int, tuple[int, ...]]  # words of each value
    value_sets: Mapping[str, tuple[int, ...]]  # bits of each key part
    reinjects: bool


def possible_cpus() -> int:
    """Return the number of possible CPUs."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="utf-8").strip()
    return int(text.replace("-", ",").split(",")[-1]) + 1


@refusing_damage()
def generate(program: Program, *, drop_port: int = 511, cpus: int | None = None) -> Code:
    """Compile a program to C.

    Raises Unsupported for constructs that softswitch cannot run, and BadInput for a damaged program.
    """
    cpus = cpus or possible_cpus()
    layout = Layout(program)
    actions = Actions(layout, drop_port)
    parser = Parser(layout, actions)
    hashes = Hashes(layout)
    matching = Tables(layout, actions)
    deparser = Deparser(layout, actions)
    copies = Copies(layout)
    traffic = Traffic(layout, actions, parser, drop_port)

    parse = parser.function()
    calculations = [hashes.function(actions.calculations[n], c) for n, c in program.calculations.items()]
    for index, checksum in enumerate(program.checksums):
        summed = program.calculations[checksum.calculation]
        if checksum.update and summed.payload:
            calculations.append(hashes.unfinished(f"unfinished_{index}", summed, checksum.target))
    action_functions = actions.functions()
    searches = matching.functions(hashes.function)
    pipelines = [matching.pipeline(p) for p in (program.ingress, program.egress)]
    checksums = deparser.checksums()
    preserve = copies.preserve() if traffic.reinjects else ""
    digests = copies.digests() if traffic.learns else ""
    deparse = deparser.deparser()
    entry = traffic.entry()

    value_sets: dict[str, tuple[int, ...]] = {}
    for state in program.parse_states.values():
        for transition in state.transitions:
            if transition.value_set is not None:
                value_sets.setdefault(transition.value_set, state.key_bits)
    members = [
        ("statistics", f"u64 %s[{len(STATISTICS)}]", 8 * len(STATISTICS)),
        ("stash_ticket", "u32 %s", 4),
        ("ports", f"struct port %s[{MOST_PORTS}]", PORT_BYTES * MOST_PORTS),
        ("lost", f"struct counter %s[{MOST_PORTS}]", 16 * MOST_PORTS),  # by full virtual queues
        ("too_long", f"u64 %s[{MOST_PORTS}]", 8 * MOST_PORTS),  # frames, for the port's link
        ("port_of", f"u16 %s[{IFINDICES}]", 2 * IFINDICES),
        *actions.shared_members(cpus),
        *matching.shared_members(),
    ]
    for i, (name, value_set) in enumerate(program.value_sets.items()):
        words = value_set_words(value_set.size, len(value_sets.get(name, (0,))))
        members.append((f"v{i}", f"u64 %s[{words}]", 8 * words))
    shared = shared_area(members)

    widths = set().union(
        *(x.expressions.widths for x in (actions, parser, hashes, matching, deparser, copies, traffic))
    )
    most_copied = max([s.room for s in layout.slots.values()], default=0)
    defines = {
        "CPUS": cpus,
        "IFINDICES": IFINDICES,
        "LOOP_PORT": LOOP_PORT,
        "KEY": align(matching.key_bytes, 8),
        "BUFFER": parser.buffer_bytes,
        "BUFFER_SPARE": align(most_copied, 8) + 16 if parser.dynamic else 16,
        "OUT": deparser.out_bytes,
        "OUT_SPARE": deparser.out_spare,
        "DIGEST": copies.digest_words,
        "LOCKS": max(actions.locks.count, 1),
        "SUMS_PAYLOAD": int(any(c.payload for c in program.calculations.values())),
        "REINJECTS": int(traffic.reinjects),
        "TRUNCATES": int(traffic.truncates or traffic.clones_ingress or traffic.clones_egress),
    }
    parts = [
        "/* A P4 program, compiled for softswitch. Objects are numbered in the order of its JSON. */",
        *(f"#define {name} {value}" for name, value in defines.items()),
        '#include "base.h"',
        *(f"WIDE({n})" for n in sorted(widths)),
        layout.declare(),
        "struct port;",
        "struct counter;",
        "struct meter;",
        '#include "types.h"',
        shared.declaration,
        '#include "state.h"',
        tables(),
        '#include "hashes.h"',
        '#include "packet.h"',
        '#include "traffic.h"',
        matching.maps(),
        *calculations,
        action_functions,
        searches,
        parse,
        checksums,
        preserve,
        digests,
        *pipelines,
        deparse,
        entry,
        'char _license[] SEC("license") = "GPL";',
    ]
    return Code(
        source="\n\n".join(part for part in parts if part) + "\n",
        shared=shared,
        layout=layout,
        actions=actions,
        tables=matching.tables,
        profiles=matching.profiles,
        digests={n: copies.digest_layout(x) for n, x in program.learn_lists.items()},
        value_sets=value_sets,
        reinjects=traffic.reinjects,
    )


def build(code: Code) -> Path:
    """Return the BPF object of generated C, from the cache or clang.

    Several switches that start together compile a program only once.
    """
    digest = hashlib.sha256(code.source.encode())
    for header in sorted(RUNTIME.glob("*.h")):
        digest.update(header.read_bytes())
    directory = cache.directory()
    stem = directory / f"softswitch-{digest.hexdigest()[:24]}"
    output = stem.with_suffix(".o")
    with locked(directory / f"softswitch-{digest.hexdigest()[0]}.lock"):  # most others can go on
        if not output.exists():
            source = stem.with_suffix(".c")
            source.write_text(code.source, encoding="utf-8")
            compile_bpf(source, output, includes=[RUNTIME])
            for suffix in ("c", "o"):
                cache.prune(f"softswitch-*.{suffix}", keep=_CACHED)
        output.touch()  # prune keeps the files used last
    return output
