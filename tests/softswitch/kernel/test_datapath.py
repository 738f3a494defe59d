"""The datapath's own promises: exact registers on several CPUs, order of entries, limits, errors."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine.errors import EntrainError
from softswitch.compiler.ir import load_program
from softswitch.contract import ActionCall, Exact, Lpm, Match, Range, Ternary
from softswitch.kernel.datapath import Datapath
from tests.softswitch.minimal import assign, constant, field, operation, primitive, program

pytestmark = pytest.mark.bpf

PROGRAMS = Path(__file__).parents[2] / "p4" / "programs" / "build"
HEADERS = {"h": [("index", 8), ("value", 32)], "m": [("old", 32), ("new", 40)]}


def register(bits: int) -> dict[str, object]:
    return {"name": "r", "id": 0, "size": 4, "bitwidth": bits}


def array(name: str) -> dict[str, str]:
    return {"type": "register_array", "value": name}


COUNTING = program(
    HEADERS,
    ["h"],
    [
        primitive("register_read", field("m", "old"), array("r"), field("h", "index")),
        assign(field("m", "new"), operation("+", field("m", "old"), field("h", "value"))),
        primitive("register_write", array("r"), field("h", "index"), field("m", "new")),
    ],
    order=["h"],
    register_arrays=[register(32)],
)


def packet(index: int, value: int) -> bytes:
    return bytes([index]) + value.to_bytes(4, "big")


@pytest.fixture(scope="module")
def counting() -> Iterator[Datapath]:
    datapath = Datapath.load(load_program(COUNTING), name="counting", netless=True)
    yield datapath
    datapath.close()


def test_registers_lose_no_update_on_two_cpus(counting: Datapath) -> None:
    """Threads run the program at once; every read-modify-write counts."""
    runs, threads = 20_000, 4
    counting.register_write("r", 1, 0)

    def work() -> None:
        counting.object.programs["softswitch"].test_run(packet(1, 1).ljust(64, b"\0"), counting_context, runs)

    counting_context = (
        bytes(48) + (3 << 8).to_bytes(4, "little") + bytes(12) + (5).to_bytes(4, "little") + bytes(124)
    )
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counting.register_read("r", 1) == runs * threads


def test_registers_from_both_sides(counting: Datapath) -> None:
    counting.register_write("r", 2, 2**32 - 1)
    counting.run(packet(2, 5), 1)
    assert counting.register_read("r", 2) == 4
    assert counting.register_read_all("r")[2] == 4
    counting.run(packet(200, 5), 1)  # out of range: BMv2 ignores it
    assert len(counting.register_read_all("r")) == 4
    with pytest.raises(EntrainError, match="no cell 4"):
        counting.register_read("r", 4)


def test_a_packet_of_any_length_leaves_whole(counting: Datapath) -> None:
    for length in (0, 1, 4, 5, 6, 13, 14, 63, 64, 65, 1500, 3000):
        sent = bytes(i % 251 for i in range(length))
        assert counting.run(sent, 2) == [(2, sent)]


def keyed(kinds: list[str], size: int) -> bytes:
    """A table over `h`, whose one action writes its argument to `value`."""
    import json

    root = json.loads(program(HEADERS, ["h"], [], order=["h"]))
    root["actions"].append(
        {
            "name": "put",
            "id": 1,
            "runtime_data": [{"name": "x", "bitwidth": 32}],
            "primitives": [assign(field("h", "value"), {"type": "runtime_data", "value": 0})],
        }
    )
    names = ["index", "value"]
    root["pipelines"][0]["tables"][0]["next_tables"] = {"act": "t"}
    root["pipelines"][0]["tables"].append(
        {
            "name": "t",
            "id": 1,
            "key": [
                {"match_type": k, "name": n, "target": ["h", n], "mask": None}
                for k, n in zip(kinds, names, strict=False)
            ],
            "match_type": kinds[0],
            "type": "simple",
            "max_size": size,
            "action_ids": [1],
            "actions": ["put"],
            "base_default_next": None,
            "next_tables": {"put": None},
        }
    )
    return json.dumps(root).encode()


def put(value: int) -> ActionCall:
    return ActionCall("put", (value,))


def looked_up(datapath: Datapath, index: int, value: int = 0) -> int:
    ((_, data),) = datapath.run(packet(index, value), 1)
    return int.from_bytes(data[1:], "big")


MATCHES: dict[str, list[tuple[Match, int, int]]] = {
    "ternary": [(Ternary(5, 0xFF), 1, 10), (Ternary(5, 0x0F), 3, 20), (Ternary(0, 0), 2, 30)],
    "range": [(Range(5, 5), 1, 10), (Range(0, 9), 3, 20), (Range(0, 255), 2, 30)],
}


@pytest.mark.parametrize("kind", MATCHES)
def test_priority_and_then_age_decide(kind: str) -> None:
    datapath = Datapath.load(load_program(keyed([kind], 8)), name=kind, netless=True)
    try:
        handles = [
            datapath.table_insert("t", (match,), priority, put(x)) for match, priority, x in MATCHES[kind]
        ]
        assert looked_up(datapath, 5) == 20
        assert looked_up(datapath, 0x42) == 30
        datapath.table_delete("t", handles[1])
        assert looked_up(datapath, 5) == 30
        equal = datapath.table_insert("t", (MATCHES[kind][0][0],), 2, put(40))  # reuses the lower handle
        assert looked_up(datapath, 5) == 40
        datapath.table_modify("t", equal, put(50))
        assert looked_up(datapath, 5) == 50
        with datapath.batch():
            datapath.table_delete("t", equal)
            datapath.table_delete("t", handles[2])
            assert datapath.table_insert("t", (MATCHES[kind][1][0],), 1, put(60)) in (handles[2], equal)
        assert looked_up(datapath, 5) in (10, 60)
        assert looked_up(datapath, 200, 7) == 7
    finally:
        datapath.close()


def covers(match: Match, index: int) -> bool:
    match match:
        case Exact(value):
            return index == value
        case Lpm(value, length):
            return index >> (8 - length) == value >> (8 - length)
        case Ternary(value, mask):
            return index & mask == value & mask
        case Range(low, high):
            return low <= index <= high


def random_match(rng: random.Random, kind: str) -> Match:
    value = rng.randrange(256)
    if kind == "exact":
        return Exact(value)
    if kind == "lpm":
        length = rng.randrange(9)
        return Lpm(value & ~(0xFF >> length), length)
    if kind == "ternary":
        mask = rng.choice([0, 0xFF, 0xF0, 0x0F, 0x81, rng.randrange(256)])
        return Ternary(value & mask, mask)
    return Range(*sorted((value, rng.randrange(256))))


@pytest.mark.parametrize("kind", ["exact", "lpm", "ternary", "range"])
def test_any_sequence_of_writes_leaves_the_entries_it_says(kind: str) -> None:
    """Random inserts, changes and deletions, some in batches, against a list of entries in Python."""
    rng = random.Random(kind)
    model: dict[int, tuple[Match, int, int]] = {}  # handle -> match, priority, argument

    def expected(index: int) -> int:
        found = [(entry, handle) for handle, entry in model.items() if covers(entry[0], index)]
        if not found:
            return 0
        order = {"lpm": lambda e: (e[0][0].prefix_len, 0)}.get(kind, lambda e: (e[0][1], -e[1]))
        return max(found, key=order)[0][2]

    datapath = Datapath.load(load_program(keyed([kind], 24)), name=kind, netless=True)

    def write() -> None:
        choice = rng.random()
        if choice < 0.5 and len(model) < 24:
            match, priority, argument = random_match(rng, kind), rng.randrange(1, 6), rng.randrange(1, 1000)
            if any(match == other for other, _, _ in model.values()) and kind in ("exact", "lpm"):
                return  # the server refuses equal keys
            handle = datapath.table_insert("t", (match,), priority, put(argument))
            assert handle not in model
            model[handle] = match, priority, argument
        elif choice < 0.7 and model:
            handle = rng.choice(list(model))
            argument = rng.randrange(1, 1000)
            datapath.table_modify("t", handle, put(argument))
            model[handle] = (*model[handle][:2], argument)
        elif model:
            handle = rng.choice(list(model))
            datapath.table_delete("t", handle)
            del model[handle]

    try:
        for _ in range(60):
            if rng.random() < 0.3:
                with datapath.batch():
                    for _ in range(rng.randrange(1, 8)):
                        write()
            else:
                write()
            for index in rng.sample(range(256), 8):
                assert looked_up(datapath, index) == expected(index), (index, model)
    finally:
        datapath.close()


@pytest.mark.parametrize("kind", ["exact", "ternary", "range"])
def test_a_table_holds_its_size_and_no_more(kind: str) -> None:
    datapath = Datapath.load(load_program(keyed([kind], 4)), name=kind, netless=True)
    make = {"exact": Exact, "ternary": lambda i: Ternary(i, 0xFF >> (i % 3)), "range": lambda i: Range(i, i)}[
        kind
    ]
    try:
        for index in range(4):
            datapath.table_insert("t", (make(index),), 1, put(index))
        with pytest.raises(EntrainError, match="full: its size is 4"):
            datapath.table_insert("t", (make(9),), 1, put(9))
        datapath.table_delete("t", 2)
        assert datapath.table_insert("t", (make(2),), 1, put(77)) == 2
        assert looked_up(datapath, 2) == 77
    finally:
        datapath.close()


def test_wrong_names_are_said(counting: Datapath) -> None:
    with pytest.raises(EntrainError, match="no table nowhere"):
        counting.table_insert("nowhere", (), 0, ActionCall("act"))
    with pytest.raises(EntrainError, match="no keys"):
        counting.table_insert("everything", (), 0, ActionCall("act"))
    with pytest.raises(EntrainError, match="default action of table everything is constant"):
        counting.table_set_default("everything", ActionCall("jump"))
    with pytest.raises(EntrainError, match="out of range"):
        counting.set_queue(512, 1.0, 0)
    with pytest.raises(EntrainError, match="no meter m"):
        counting.meter_write("m", 0, None)


def test_a_full_virtual_queue_drops_the_tail(counting: Datapath) -> None:
    counting.set_queue(6, 0.001, 3)  # 125 bytes a second
    try:
        sent = [counting.run(bytes(1000), 6) for _ in range(5)]
        assert [len(s) for s in sent] == [1, 1, 1, 0, 0]
        assert counting.stats()["dropped_queue_full"] == 2
        (queue,) = counting.queues().values()
        assert (queue.dropped_packets, queue.dropped_bytes) == (2, 2000)
        assert 0 < queue.waiting_bytes <= 3000 and 0 < queue.waiting_packets <= 3
    finally:
        counting.set_queue(6, 0, 0)
    assert counting.run(bytes(1000), 6)


def test_express_frames_wait_in_no_virtual_queue() -> None:
    loaded = load_program(program({}, [], []))
    with contextlib.closing(Datapath.load(loaded, name="express", netless=True, express=0x88B5)) as datapath:
        datapath.set_queue(6, 0.001, 3)
        data, express = bytes(1000), bytes(12) + b"\x88\xb5" + bytes(986)
        sent = [len(datapath.run(packet, 6)) for packet in (data, data, data, data, express, data, express)]
        assert sent == [1, 1, 1, 0, 1, 0, 1]


def test_constant_expressions_of_every_sign() -> None:
    headers = {"h": [("a", 16, True), ("b", 16)]}
    statements = [assign(field("h", "a"), constant(-3)), assign(field("h", "b"), constant(-3))]
    datapath = Datapath.load(load_program(program(headers, ["h"], statements)), name="signs", netless=True)
    try:
        assert datapath.run(bytes(4), 1) == [(1, bytes.fromhex("fffdfffd"))]
    finally:
        datapath.close()
        datapath.close()
