"""The server on the datapath that runs packets: it takes what the one in memory takes, and packets see it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from finsy.proto import p4r

from tests.softswitch.harness import (
    IDS,
    INSERT,
    MODIFY,
    Bench,
    action,
    entity,
    entry,
    kernel_datapath,
    l2,
    lpm,
    ternary,
    update,
)
from tests.softswitch.p4runtime.test_server_entities import digest, multicast, one_shot, session
from tests.softswitch.p4runtime.test_server_fuzz import KINDS, counted, message, mutated, state

pytestmark = pytest.mark.bpf

ETHERNET = bytes.fromhex("0200000000010200000000020800")
IPV4 = bytes.fromhex("4500001400000000401100000a0000010a000002")
PACKET = ETHERNET + IPV4 + bytes(40)
TO = 0x020000000001


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(kernel_datapath("server-test")) as datapath:
        yield Bench(datapath=datapath)


def out(bench: Bench, packet: bytes = PACKET, port: int = 1) -> list[int]:
    """The ports that a packet leaves by."""
    return [port for port, _ in bench.datapath.run(packet, port)]


def permit_everything(bench: Bench) -> None:
    """A route and a next hop, so that only l2 decides."""
    bench.insert(entry("route", {}, action("set_nexthop", 1)))


def written(bench: Bench) -> list[bytes]:
    """The state, but for the program's own entries, whose priorities are each datapath's choice."""
    return [s for s in state(bench) if p4r.Entity.FromString(s).table_entry.table_id != IDS["preset"]]


@pytest.mark.parametrize("seed", range(3))
def test_both_datapaths_take_and_refuse_the_same(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    other = Bench()
    initial = other.read(entry("preset")), bench.read(entry("preset"))
    for theirs, ours in zip(*initial, strict=True):  # only the priorities of the program's own entries differ
        theirs.priority = ours.priority = 0
        assert theirs == ours
    for _ in range(400):
        asked = update(rng.choice(KINDS), message(rng))
        if rng.random() < 0.3:
            asked = mutated(rng, asked)
        answers = [
            None if refused is None else (refused.code.name, refused.message)
            for refused in (bench.entities.write([asked])[0], other.entities.write([asked])[0])
        ]
        assert answers[0] == answers[1]
    assert written(bench) == written(other)
    assert counted(bench) == counted(other)


def test_packets_follow_what_controllers_write(bench: Bench) -> None:
    permit_everything(bench)
    assert out(bench) == []
    bench.insert(l2(TO, port=3))
    assert out(bench) == [3]
    assert bench.write(MODIFY, l2(TO, port=4)) is None
    assert out(bench) == [4]
    bench.insert(entry("acl", {1: ternary(0x0A000001, 0xFFFFFFFF)}, action("deny"), priority=5))
    assert out(bench) == []
    bench.insert(entry("acl", {2: ("optional", {"value": 17})}, action("permit"), priority=6))
    assert out(bench) == [4]


def test_one_shots_forward(bench: Bench) -> None:
    permit_everything(bench)
    bench.insert(one_shot(1, (7, 2, None), (8, 1, None)))
    sources = (PACKET[:26] + i.to_bytes(4, "big") + PACKET[30:] for i in range(60))
    taken = [port for packet in sources for port in out(bench, packet)]
    assert set(taken) == {7, 8}
    assert taken.count(7) > taken.count(8)


def test_multicast_and_clones(bench: Bench) -> None:
    bench.insert(
        entry("l2", {1: TO}, action("flood", 9)),
        multicast(9, (2, 0), (3, 1)),
        entry("source", {1: 0x020000000002, 2: 1}, action("mirror", 5)),
        session(5, 6),
    )
    frame = PACKET[:12] + b"\x88\xb6" + bytes(46)
    assert sorted(out(bench, frame)) == [2, 3, 6]


def test_counters_count_and_registers_remember(bench: Bench) -> None:
    bench.insert(entry("route", {1: lpm(0x0A000000, 8)}, action("set_nexthop", 1)))
    for _ in range(3):
        out(bench)
    direct = bench.read(p4r.DirectCounterEntry(table_entry=entry("route", {1: lpm(0x0A000000, 8)})))
    assert [(c.data.packet_count, c.data.byte_count) for c in direct] == [(3, 3 * len(PACKET))]
    asked = p4r.CounterEntry(counter_id=IDS["port_in"])
    asked.index.index = 1
    assert [c.data.packet_count for c in bench.read(asked)] == [3]
    cells = bench.read(p4r.RegisterEntry(register_id=IDS["seen"]))
    assert [int.from_bytes(cell.data.bitstring, "big") for cell in cells] == [0, 3, *[0] * 14]
    cells[1].data.bitstring = b"\x05\0"
    assert bench.write(MODIFY, cells[1]) is None
    out(bench)
    assert bench.read(cells[1])[0].data.bitstring == b"\x05\x01"


def test_value_sets_steer_the_parser(bench: Bench) -> None:
    bench.insert(l2(TO, port=3))
    strange = PACKET[:12] + b"\x12\x34" + PACKET[14:]
    assert out(bench, strange) == [3]  # not IPv4: no route that drops
    members = p4r.ValueSetEntry(value_set_id=IDS["ip_types"])
    members.members.add().match.add(field_id=1).exact.value = b"\x12\x34"
    assert bench.write(MODIFY, members) is None
    assert out(bench, strange) == []


def test_digests_come_from_packets(bench: Bench) -> None:
    bench.insert(entry("source", {1: 0x020000000002, 2: 1}, action("learn")), digest(0, 1, 0))
    out(bench)
    bench.datapath.poll_digests(bench.entities.digests.learned)
    fields: list[Any] = [list(m.struct.members) for m in bench.sent[0].digest.data]
    assert [[m.bitstring for m in members] for members in fields] == [[b"\x02\0\0\0\0\x02", b"\x01"]]


def test_the_whole_state_moves_to_another_program(bench: Bench) -> None:
    rng = random.Random(1)
    for _ in range(200):
        bench.entities.write([update(rng.choice(KINDS), message(rng))])
    with closing(kernel_datapath("server-copy")) as datapath:
        copy = Bench(datapath=datapath)
        for asked in bench.entities.state():
            refused = copy.entities.write([asked])[0]
            assert refused is None or refused.code.name == "ALREADY_EXISTS"
        assert sorted(state(copy)) == sorted(state(bench))


def test_reads_of_an_unwritten_program(bench: Bench) -> None:
    """Every wildcard has an answer from the start."""
    for wanted in (
        p4r.TableEntry(),
        p4r.CounterEntry(),
        p4r.MeterEntry(),
        p4r.RegisterEntry(),
        p4r.ValueSetEntry(),
    ):
        assert list(bench.entities.read(entity(wanted)))
    assert len(bench.read(entry("preset"))) == 2
    assert [e.is_const for e in bench.read(entry("fixed"))] == [True, True]
    assert bench.write(INSERT, entry("fixed", {1: 9}, action("drop"))) is not None
