"""Tables: every match kind against a plain search through the entries; const and default entries; changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from finsy import P4TableAction, P4TableEntry, P4TableMatch

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, unbits
from tests.p4.targets import Target

KEYS = {
    "exact": 16,
    "lpm": 32,
    "ternary": 32,
    "range": 16,
    "optional": 16,
    "address": 128,
    "wide": 256,
    "narrow": 5,
    "flag": 1,
    "odd": 10,
    "long": 129,
    "pad": 7,
}
RESULTS = [
    "exact_table",
    "lpm_table",
    "ternary_table",
    "range_table",
    "optional_table",
    "mixed_table",
    "mixed_lpm_table",
    "address_table",
    "address_ternary_table",
    "wide_table",
    "odd_table",
    "constant_table",
    "constant_range_table",
    "keyless_table",
    "flow",
    "valid_table",
    "long_table",
]
TABLES: dict[str, dict[str, str]] = {
    "exact_table": {"exact": "exact"},
    "lpm_table": {"lpm": "lpm"},
    "ternary_table": {"ternary": "ternary", "exact": "ternary"},
    "range_table": {"range": "range"},
    "optional_table": {"optional": "optional", "exact": "optional"},
    "mixed_table": {
        "exact": "exact",
        "lpm": "lpm",
        "ternary": "ternary",
        "range": "range",
        "optional": "optional",
    },
    "mixed_lpm_table": {"exact": "exact", "lpm": "lpm", "flag": "exact"},
    "address_table": {"address": "lpm"},
    "address_ternary_table": {"address": "ternary", "narrow": "exact"},
    "wide_table": {"wide": "exact"},
    "long_table": {"long": "exact", "address": "lpm", "narrow": "exact"},
    "odd_table": {"odd": "range", "narrow": "ternary", "flag": "exact"},
}
MISS = {"exact_table": 1, "lpm_table": 250, "ternary_table": 251}
BY_PRIORITY = {"ternary", "range", "optional"}


def send(target: Target, port: int = 1, **keys: int) -> dict[str, int]:
    """What each table made of these keys (those left out are 0)."""
    return results(target.send(port, packet(keys)))


def packet(keys: dict[str, int]) -> bytes:
    return ether(0x9400, bits([(keys.get(name, 0), width) for name, width in KEYS.items()]))


def results(outputs: Sequence[tuple[int, bytes]]) -> dict[str, int]:
    ((_, output),) = outputs
    fields = unbits(output[14 + 81 :], [8] * len(RESULTS) + [128])
    return dict(zip([*RESULTS, "data"], fields, strict=True))


def entry(table: str, value: int, priority: int = 0, data: int = 0, **keys: Any) -> P4TableEntry:
    """An entry that marks its table's result with `value`."""
    wide = table.startswith("address")
    action = P4TableAction("set_wide", value=value, data=data) if wide else P4TableAction("set", value=value)
    match = P4TableMatch({f"hdr.keys.{name}": key for name, key in keys.items()})
    return P4TableEntry(table, match=match or None, action=action, priority=priority)


# --- the oracle ---


@dataclass(frozen=True)
class Row:
    """An entry as the oracle sees it; a key that is left out matches anything."""

    keys: dict[str, tuple[int, ...]]
    priority: int
    value: int

    def matches(self, kinds: dict[str, str], keys: dict[str, int]) -> bool:
        for name, key in self.keys.items():
            value = keys[name]
            match kinds[name]:
                case "lpm":
                    fits = (value ^ key[0]) >> KEYS[name] - key[1] == 0
                case "ternary":
                    fits = value & key[1] == key[0]
                case "range":
                    fits = key[0] <= value <= key[1]
                case _:
                    fits = value == key[0]
            if not fits:
                return False
        return True

    def rank(self, kinds: dict[str, str]) -> int:
        """Larger wins: the priority where the table has one, else the length of the prefix."""
        if BY_PRIORITY & set(kinds.values()):
            return self.priority
        return sum(key[1] for name, key in self.keys.items() if kinds[name] == "lpm")


def random_key(rng: random.Random, kind: str, width: int, pool: Sequence[int]) -> tuple[int, ...] | None:
    """A key that fits P4Runtime's rules, made of the pool's values; None: anything."""
    full, value = (1 << width) - 1, rng.choice(pool)
    match kind:
        case "exact":
            return (value,)
        case "optional":
            return rng.choice([None, (value,)])
        case "lpm":
            length = rng.choice([0, 1, width // 2, width - 1, width, rng.randrange(width + 1)])
            return (value >> width - length << width - length, length) if length else None
        case "ternary":
            mask = rng.choice([0, full, full ^ 1, full >> width // 2, rng.getrandbits(width)])
            return (value & mask, mask) if mask else None
        case _:
            low, high = sorted((value, rng.choice([value, full, rng.getrandbits(width)])))
            return None if (low, high) == (0, full) else (low, high)


def random_rows(
    rng: random.Random, kinds: dict[str, str], pools: dict[str, list[int]], count: int
) -> list[Row]:
    rows: dict[object, Row] = {}
    for number in range(count):
        keys = {name: random_key(rng, kind, KEYS[name], pools[name]) for name, kind in kinds.items()}
        present = {name: key for name, key in keys.items() if key is not None}
        # Equal priorities would leave the choice to the target.
        row = Row(present, priority=number + 1, value=rng.randrange(2, 250))
        rows.setdefault(tuple(present.items()), row)
    return list(rows.values())


def to_entity(table: str, row: Row, kinds: dict[str, str]) -> P4TableEntry:
    keys: dict[str, Any] = {
        name: key[0] if kinds[name] in ("exact", "optional") else key for name, key in row.keys.items()
    }
    priority = row.priority if BY_PRIORITY & set(kinds.values()) else 0
    return entry(table, row.value, priority, **keys)


@pytest.mark.parametrize("seed", range(3))
def test_tables_choose_what_a_plain_search_chooses(start: Start, seed: int) -> None:
    rng, target = random.Random(seed), start("match")
    pools = {name: [rng.getrandbits(width) for _ in range(5)] + [0] for name, width in KEYS.items()}
    tables = {table: random_rows(rng, kinds, pools, 30) for table, kinds in TABLES.items()}
    entities = [to_entity(table, row, TABLES[table]) for table, rows in tables.items() for row in rows]
    rng.shuffle(entities)
    probes = []
    for _ in range(300):
        keys = {name: rng.choice(pools[name]) for name in KEYS}
        for name, width in KEYS.items():
            if rng.random() < 0.2:
                keys[name] ^= 1 << rng.randrange(width)
        probes.append(keys)
    with target.installed(*entities):
        batch = target.send_batch([(1, packet(keys)) for keys in probes])
    hits = 0
    for keys, outputs in zip(probes, batch.outputs, strict=True):
        found = results(outputs)
        for table, kinds in TABLES.items():
            fitting = [row for row in tables[table] if row.matches(kinds, keys)]
            best = max(fitting, key=lambda row: row.rank(TABLES[table]), default=None)
            assert found[table] == (best.value if best else MISS.get(table, 0)), (table, keys)
            hits += best is not None
    assert hits > 300


def test_without_entries_the_defaults_apply(start: Start) -> None:
    found = send(start("match"), exact=2)
    assert [found[table] for table in TABLES] == [1, 250, 251] + [0] * (len(TABLES) - 3)
    assert found["keyless_table"] == 77
    assert found["flow"] == 4 | 16 | 32


def test_hit_miss_and_action_run(start: Start) -> None:
    target = start("match")
    with target.installed(
        entry("exact_table", 9, exact=5),
        P4TableEntry(
            "exact_table", match=P4TableMatch({"hdr.keys.exact": 6}), action=P4TableAction("add", value=9)
        ),
        P4TableEntry(
            "exact_table", match=P4TableMatch({"hdr.keys.exact": 7}), action=P4TableAction("nothing")
        ),
        entry("lpm_table", 3, lpm=(0x0A000000, 8)),
        entry("ternary_table", 4, 1, exact=(5, 0xFF)),
        entry("range_table", 5, 1, range=(10, 20)),
    ):
        found = send(target, exact=5, lpm=0x0A010101, range=20)
        assert (found["exact_table"], found["flow"]) == (9, 1 | 8 | 64 | 128)
        found = send(target, exact=6, range=21)
        assert (found["exact_table"], found["flow"]) == (10, 2 | 16 | 32)
        assert send(target, exact=7)["flow"] & 7 == 4


@pytest.mark.parametrize(
    ("exact", "lpm", "value"),
    [
        (0x1234, 0x0A010101, 1),
        (0x1235, 0x0A010101, 2),
        (0x1300, 0x0A0A0001, 3),
        (0x1301, 0x0A0A0001, 3),
        (0x1301, 0x0B000000, 4),
        (0x1300, 0x0B000000, 0),
    ],
)
def test_const_entries_in_their_order(start: Start, exact: int, lpm: int, value: int) -> None:
    assert send(start("match"), exact=exact, lpm=lpm)["constant_table"] == value


@pytest.mark.parametrize(
    ("range_", "exact", "value"),
    [
        (1, 7, 1),
        (7, 7, 1),
        (10, 7, 1),
        (11, 7, 2),
        (20, 7, 2),
        (21, 7, 200),
        (65535, 7, 4),
        (65535, 8, 3),
        (0, 9, 200),
    ],
)
def test_const_ranges(start: Start, range_: int, exact: int, value: int) -> None:
    assert send(start("match"), range=range_, exact=exact)["constant_range_table"] == value


def test_wide_action_parameters(start: Start) -> None:
    target, data = start("match"), 0x0123456789ABCDEFFEDCBA9876543210
    with target.installed(entry("address_table", 7, data=data, address=(0x2001 << 112, 16))):
        assert send(target, address=0x2001 << 112 | 5)["data"] == data


def test_validity_and_port_as_keys(start: Start) -> None:
    target = start("match")
    match = P4TableMatch({"hdr.keys.$valid$": 1, "std.ingress_port": 3})
    with target.installed(P4TableEntry("valid_table", match=match, action=P4TableAction("set", value=5))):
        assert send(target, port=3)["valid_table"] == 5
        assert send(target, port=2)["valid_table"] == 0
        ((_, output),) = target.send(3, ether(0x1234))
        assert output[14:] == bytes(33)


def test_default_action_changes_and_returns(start: Start) -> None:
    target = start("match")
    changed = P4TableEntry("lpm_table", action=P4TableAction("set", value=33), is_default_action=True)
    target.client.modify(changed)
    assert send(target)["lpm_table"] == 33
    target.client.modify(P4TableEntry("lpm_table", is_default_action=True))
    assert send(target)["lpm_table"] == 250


def test_keyless_table_by_its_default(start: Start) -> None:
    target = start("match")
    target.client.modify(
        P4TableEntry("keyless_table", action=P4TableAction("set", value=8), is_default_action=True)
    )
    assert send(target)["keyless_table"] == 8
    target.client.modify(P4TableEntry("keyless_table", is_default_action=True))
    assert send(target)["keyless_table"] == 77


def test_modified_and_deleted_entries(start: Start) -> None:
    target = start("match")
    first = entry("ternary_table", 1, 10, ternary=(0x100, 0xF00))
    second = entry("ternary_table", 2, 20, ternary=(0x101, 0xF01))
    target.client.insert(first, second)
    assert send(target, ternary=0x101)["ternary_table"] == 2
    target.client.modify(entry("ternary_table", 3, 20, ternary=(0x101, 0xF01)))
    assert send(target, ternary=0x101)["ternary_table"] == 3
    target.client.delete(second)
    assert send(target, ternary=0x101)["ternary_table"] == 1
    target.client.delete(first)
    assert send(target, ternary=0x101)["ternary_table"] == 251


@pytest.mark.parametrize(
    "refused",
    [
        P4TableEntry("constant_table", action=P4TableAction("set", value=1), is_default_action=True),
        entry("ternary_table", 1, 0, ternary=(1, 1)),
    ],
    ids=["const default", "no priority"],
)
def test_refused_entries(start: Start, refused: P4TableEntry) -> None:
    with pytest.raises(grpc.RpcError):
        client = start("match").client
        (client.modify if refused.is_default_action else client.insert)(refused)


def test_entries_are_read_back(start: Start) -> None:
    target = start("match")
    entities = [
        entry("exact_table", 9, exact=5),
        entry("lpm_table", 3, lpm=(0x0A000000, 8)),
        entry("ternary_table", 4, 7, ternary=(0, 1 << 31), exact=(5, 0xFF)),
        entry("range_table", 5, 3, range=(10, 20)),
        entry("optional_table", 5, 3, exact=5),
        entry("address_table", 6, data=1 << 127, address=(0x20 << 120, 8)),
    ]
    encoded = {
        entity.encode(target.client.schema).SerializeToString(deterministic=True) for entity in entities
    }
    with target.installed(*entities):
        for entity in entities:
            (found,) = target.client.read(P4TableEntry(entity.table_id))
            assert found.encode(target.client.schema).SerializeToString(deterministic=True) in encoded
