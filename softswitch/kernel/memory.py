"""The kernel memory that a program's state takes, computed before anything is allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from softswitch.compiler.build import Code, possible_cpus
from softswitch.compiler.layout import align
from softswitch.compiler.table_layout import TableLayout
from softswitch.contract import Full

_MIB = 1 << 20
_STASHES = 512  # runtime/types.h
_HASH_ENTRY, _HASH_BUCKET = 48, 16  # the kernel's struct htab_elem and struct bucket
_TRIE_NODE = 64  # struct lpm_trie_node; each entry may need an intermediate node too


def uses(code: Code) -> Mapping[str, int]:
    """Return the bytes that each object takes whose size the program chooses.

    A table's own counters and meters belong to the table.
    """
    program, actions = code.layout.program, code.actions
    shared = {name: size for name, (_, size) in code.shared.members.items()}
    found = Counter[str]()
    for name, index in actions.registers.items():
        found[f"register {name}"] = shared[f"r{index}"]
    for name, index in actions.counters.items():
        table = program.counters[name].table
        found[f"table {table}" if table else f"counter {name}"] += shared[f"c{index}"]
    for name, index in actions.meters.items():
        table = program.meters[name].table
        found[f"table {table}" if table else f"meter {name}"] += shared[f"e{index}"]
    for name, layout in code.tables.items():
        found[f"table {name}"] += _table(layout) + sum(shared.get(f"{x}{layout.index}", 0) for x in "dto")
    for name, profile in code.profiles.items():
        found[f"action profile {name}"] = sum(shared.get(f"{x}{profile.index}", 0) for x in "nbgl")
    for index, name in enumerate(program.value_sets):
        found[f"value set {name}"] = shared[f"v{index}"]
    found["headers and metadata"] = code.layout.size * (possible_cpus() + (_STASHES if code.reinjects else 0))
    return found


def _table(table: TableLayout) -> int:
    """Return the bytes of a table's own map."""
    match table.method:
        case "exact":
            return _hash(table.slots, table.key.size, table.entry_bytes)
        case "lpm":
            return table.slots * (2 * _TRIE_NODE + table.key.size + table.entry_bytes)
        case "ternary":
            return _hash(table.slots, 8 + 8 * table.words, 16)
    return 0


def _hash(entries: int, key: int, value: int) -> int:
    buckets = 1 << max(entries - 1, 1).bit_length()
    return entries * (_HASH_ENTRY + align(key, 8) + align(value, 8)) + buckets * _HASH_BUCKET


def check(code: Code, limit: int) -> None:
    """Raise Full, naming the largest object, if the program's state takes more than `limit` bytes."""
    found = uses(code)
    total = sum(found.values())
    if total > limit:
        largest = max(found, key=lambda name: found[name])
        raise Full(
            f"the program's state takes {_mib(total)} MiB, more than the {_mib(limit)} MiB that this switch"
            f" allows (--max-state-mib); the largest part is {largest} with {_mib(found[largest])} MiB"
        )


def _mib(size: int) -> int:
    return -(-size // _MIB)
