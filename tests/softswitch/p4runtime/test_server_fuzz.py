"""Whatever a controller sends, the answer is a refusal or a change that can be read back; never an accident.

The datapath in memory asserts what must not happen to a datapath, so these tests also state that refused
updates change nothing there.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from finsy.proto import p4r
from google.protobuf.message import DecodeError

from softswitch.p4runtime.status import Refused
from tests.softswitch.harness import (
    DELETE,
    IDS,
    INSERT,
    MODIFY,
    Bench,
    action,
    entity,
    entry,
    l2,
    lpm,
    ternary,
    update,
)
from tests.softswitch.p4runtime.test_server_entities import (
    group,
    indirect,
    member,
    multicast,
    one_shot,
    session,
)

SEEDS = range(8)
KINDS = (INSERT, MODIFY, DELETE)
INT64 = (0, 1, -1, 2**31, 2**63 - 1, -(2**63))


def message(rng: random.Random) -> Any:
    """A message that often fits, over few ids, so that updates meet each other."""
    small = rng.randrange(4)
    match rng.randrange(15):
        case 0:
            return l2(small, port=small)
        case 1:
            return entry("route", {1: lpm(small << 24, 8)}, action("set_nexthop", small))
        case 2:
            return entry("acl", {1: ternary(small, 3)}, action("deny"), priority=rng.randrange(3))
        case 3:
            return member(small, port=small + 1)
        case 4:
            return group(small, *((rng.randrange(4), rng.randrange(3)) for _ in range(rng.randrange(4))))
        case 5:
            return indirect(small, group_id=rng.randrange(4))
        case 6:
            return one_shot(small, *((1, rng.randrange(3), None) for _ in range(rng.randrange(4))))
        case 7:
            return multicast(small, *((rng.randrange(3), rng.randrange(2)) for _ in range(rng.randrange(4))))
        case 8:
            return session(small, *range(rng.randrange(3)))
        case 9:
            made = p4r.CounterEntry(counter_id=IDS["port_in"], data=_counted(rng))
            made.index.index = small
            return made
        case 10:
            return p4r.DirectCounterEntry(
                table_entry=entry("route", {1: lpm(small << 24, 8)}), data=_counted(rng)
            )
        case 11:
            route = entry("route", {1: lpm(small << 24, 8)}, action("set_nexthop", small))
            route.counter_data.CopyFrom(_counted(rng))
            return route
        case 12:
            meter = p4r.MeterEntry(meter_id=IDS["port_meter"])
            meter.index.index = small
            numbers = sorted(rng.choice(INT64) for _ in range(2))
            meter.config.CopyFrom(p4r.MeterConfig(cir=numbers[0], pir=numbers[1], cburst=rng.choice(INT64)))
            return meter
        case 13:
            cell = p4r.RegisterEntry(register_id=IDS["seen"])
            cell.index.index = small
            cell.data.bitstring = rng.randbytes(rng.randrange(10))
            return cell
        case _:
            return indirect(small, member_id=rng.randrange(4), table="nexthop")


def _counted(rng: random.Random) -> Any:
    return p4r.CounterData(packet_count=rng.choice(INT64), byte_count=rng.choice(INT64))


def mutated(rng: random.Random, whole: Any) -> Any:
    """The message with a few bytes of its encoding changed, where that still is a message."""
    data = bytearray(whole.SerializeToString())
    for _ in range(rng.randrange(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        return p4r.Update.FromString(bytes(data))
    except DecodeError:
        return whole


def state(bench: Bench) -> list[bytes]:
    """What controllers alone change."""
    wanted = [
        p4r.TableEntry(),
        p4r.ActionProfileMember(),
        p4r.ActionProfileGroup(),
        p4r.PacketReplicationEngineEntry(),
        p4r.MeterEntry(),
    ]
    return [e.SerializeToString() for w in wanted for e in bench.entities.read(entity(w))]


def counted(bench: Bench) -> list[bytes]:
    """What packets change, too."""
    wanted = [p4r.CounterEntry(), p4r.DirectCounterEntry(), p4r.RegisterEntry()]
    return [e.SerializeToString() for w in wanted for e in bench.entities.read(entity(w))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_updates_are_applied_or_refused_and_never_in_between(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    applied = 0
    for _ in range(400):
        asked = update(rng.choice(KINDS), message(rng))
        if rng.random() < 0.3:
            asked = mutated(rng, asked)
        before = state(bench), counted(bench)
        refused = bench.entities.write([asked])[0]
        if refused is not None:
            assert refused.message
            assert refused.code.name != "INTERNAL"
            assert (state(bench), counted(bench)) == before
        else:
            applied += 1
    assert applied > 40


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_written_makes_the_same_state_in_a_new_program(seed: int) -> None:
    rng = random.Random(seed)
    bench, copy = Bench(), Bench()
    for _ in range(200):
        bench.entities.write([update(rng.choice(KINDS), message(rng))])
    for asked in bench.entities.state():
        refused = copy.entities.write([asked])[0]
        if refused is not None:  # an entry that the program itself brings
            assert refused.code.name == "ALREADY_EXISTS"
            assert asked.entity.table_entry.table_id == IDS["preset"]
    assert sorted(state(copy)) == sorted(state(bench))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_reads_never_fail_but_by_refusal(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    bench.insert(l2(1), member(1), group(1, (1, 1)), multicast(1, (1, 1)))
    for _ in range(300):
        asked = mutated(rng, update(INSERT, message(rng))).entity
        try:
            list(bench.entities.read(asked))
        except Refused as refused:
            assert refused.message
