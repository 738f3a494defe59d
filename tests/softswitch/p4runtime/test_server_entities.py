"""Profiles, selectors, counters, meters, registers, replication, value sets and digests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from finsy.proto import p4r

from softswitch.contract import ActionCall, Exact, Group, Member, Queue
from softswitch.p4runtime.entities.queues import DROPPED, TOO_LONG, WAITING
from softswitch.p4runtime.status import Refused
from tests.softswitch.harness import (
    DELETE,
    IDS,
    INSERT,
    MODIFY,
    Bench,
    action,
    entry,
    l2,
    lpm,
    octets,
    update,
)

ECMP = "FeaturesIngress.ecmp_selector"
FORWARD = "FeaturesIngress.forward"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def member(id_: int, port: int = 1, profile: str = "ecmp_selector") -> Any:
    return p4r.ActionProfileMember(
        action_profile_id=IDS[profile], member_id=id_, action=action("forward", port, 0xAA)
    )


def group(id_: int, *members: tuple[int, int], watch: dict[int, int] | None = None, max_size: int = 0) -> Any:
    """A group of (member, weight)."""
    made = p4r.ActionProfileGroup(action_profile_id=IDS["ecmp_selector"], group_id=id_, max_size=max_size)
    for member_id, weight in members:
        added = made.members.add(member_id=member_id, weight=weight)
        if watch and member_id in watch:
            added.watch_port = octets(watch[member_id])
    return made


def indirect(nexthop: int, *, member_id: int = 0, group_id: int = 0, table: str = "ecmp") -> Any:
    made = entry(table, {1: nexthop})
    if member_id:
        made.action.action_profile_member_id = member_id
    else:
        made.action.action_profile_group_id = group_id
    return made


def one_shot(nexthop: int, *choices: tuple[int, int, int | None]) -> Any:
    """An entry with (port, weight, watched port) choices."""
    made = entry("ecmp", {1: nexthop})
    for port, weight, watch in choices:
        added = made.action.action_profile_action_set.action_profile_actions.add(
            action=action("forward", port, 0xAA), weight=weight
        )
        if watch is not None:
            added.watch_port = octets(watch)
    return made


def code(refusal: tuple[str, str] | None) -> str | None:
    return None if refusal is None else refusal[0]


def test_members_and_groups_are_read_back(bench: Bench) -> None:
    written = [member(1), member(2, 2), group(5, (2, 1), (1, 3), max_size=8), indirect(9, group_id=5)]
    bench.insert(*written)
    assert bench.read(p4r.ActionProfileMember()) == written[:2]
    assert bench.read(p4r.ActionProfileGroup(action_profile_id=IDS["ecmp_selector"])) == [written[2]]
    assert bench.read(entry("ecmp")) == [written[3]]
    assert bench.datapath.members[ECMP, 2] == ActionCall(FORWARD, (2, 0xAA))
    assert [e[3] for e in bench.datapath.entries.values() if e[0].endswith("ecmp")] == [Group(5)]


def ports(bench: Bench, group_id: int) -> list[int]:
    """The ports that the members of a group in the datapath forward to."""
    return [bench.datapath.members[ECMP, id_].args[0] for id_ in bench.datapath.groups[ECMP, group_id]]


def test_a_weight_is_that_many_members(bench: Bench) -> None:
    bench.insert(member(1, 11), member(2, 12), group(5, (1, 1), (2, 3)), group(6, (2, 2)))
    assert ports(bench, 5) == [11, 12, 12, 12]
    assert ports(bench, 6) == [12, 12]
    assert bench.write(MODIFY, member(2, 22)) is None
    assert ports(bench, 5) == [11, 22, 22, 22]
    assert bench.write(MODIFY, group(5, (1, 2))) is None
    assert ports(bench, 5) == [11, 11]
    assert len(bench.datapath.members) == 4  # group 6 needs one copy of member 2, group 5 one of member 1
    for gone in (group(5), group(6), member(1), member(2)):
        assert bench.write(DELETE, gone) is None
    assert bench.datapath.members == bench.datapath.groups == {}


def test_copies_for_weights_count_against_the_size(bench: Bench) -> None:
    bench.insert(*(member(i) for i in range(1, 27)))
    assert code(bench.write(INSERT, group(1, (1, 8)))) == "RESOURCE_EXHAUSTED"
    assert len(bench.datapath.members) == 26
    bench.insert(group(1, (1, 7)))


def test_what_is_in_use_is_not_deleted(bench: Bench) -> None:
    bench.insert(member(1), member(2), group(5, (1, 1)), indirect(1, group_id=5), indirect(2, member_id=2))
    assert code(bench.write(DELETE, member(1))) == "FAILED_PRECONDITION"
    assert code(bench.write(DELETE, member(2))) == "FAILED_PRECONDITION"
    assert code(bench.write(DELETE, group(5))) == "FAILED_PRECONDITION"
    assert bench.write(MODIFY, indirect(1, member_id=2)) is None
    for message in (group(5), indirect(1), indirect(2), member(1), member(2)):
        assert bench.write(DELETE, message) is None
    assert bench.datapath.members == bench.datapath.groups == {}


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (INSERT, member(1), "ALREADY_EXISTS"),
        (MODIFY, member(9), "NOT_FOUND"),
        (DELETE, member(9), "NOT_FOUND"),
        (INSERT, member(0), "INVALID_ARGUMENT"),
        (INSERT, p4r.ActionProfileMember(action_profile_id=1, member_id=1), "INVALID_ARGUMENT"),
        (
            INSERT,
            p4r.ActionProfileMember(action_profile_id=IDS["ecmp_selector"], member_id=7),
            "INVALID_ARGUMENT",
        ),
        (INSERT, group(5, (9, 1)), "NOT_FOUND"),
        (INSERT, group(5, (1, 0)), "INVALID_ARGUMENT"),
        (INSERT, group(5, (1, 1), (1, 1)), "INVALID_ARGUMENT"),
        (INSERT, group(5, (1, 9)), "RESOURCE_EXHAUSTED"),
        (INSERT, group(5, max_size=9), "INVALID_ARGUMENT"),
        (MODIFY, group(5, (1, 1)), "NOT_FOUND"),
        (DELETE, group(5), "NOT_FOUND"),
        (INSERT, indirect(1, group_id=77), "NOT_FOUND"),
        (INSERT, indirect(1, member_id=77), "NOT_FOUND"),
        (INSERT, entry("ecmp", {1: 1}, action("forward", 1, 1)), "INVALID_ARGUMENT"),
        (INSERT, indirect(1, group_id=1, table="nexthop"), "INVALID_ARGUMENT"),
        (INSERT, indirect(1, group_id=1, table="l2"), "INVALID_ARGUMENT"),
        (INSERT, one_shot(1, (1, 1, None)), "INVALID_ARGUMENT"),  # the two styles do not mix
    ],
)
def test_what_profiles_refuse(bench: Bench, kind: int, message: Any, expected: str) -> None:
    bench.insert(member(1))
    assert code(bench.write(kind, message)) == expected
    assert len(bench.datapath.members) == 1


def test_a_full_profile_refuses_members(bench: Bench) -> None:
    bench.insert(*(member(i, profile="nexthop_profile") for i in range(1, 9)))
    refusal = bench.write(INSERT, member(9, profile="nexthop_profile"))
    assert refusal == ("RESOURCE_EXHAUSTED", "FeaturesIngress.nexthop_profile is full: it holds 8 members")
    bench.insert(indirect(4, member_id=8, table="nexthop"))
    assert Member(8) in [e[3] for e in bench.datapath.entries.values()]


def test_members_whose_port_is_down_get_no_packets(bench: Bench) -> None:
    bench.up[7] = False
    bench.insert(member(1), member(2), group(5, (1, 1), (2, 1), watch={1: 7}))
    assert bench.datapath.groups[ECMP, 5] == (2,)
    bench.up[7] = True
    bench.entities.profiles.port_changed(7)
    assert bench.datapath.groups[ECMP, 5] == (1, 2)
    assert bench.read(p4r.ActionProfileGroup())[0].members[0].watch_port == b"\x07"


def test_one_shots_are_read_back_and_leave_nothing(bench: Bench) -> None:
    bench.up[7] = False
    written = one_shot(1, (1, 2, None), (2, 1, 7), (1, 1, None))
    bench.insert(written, one_shot(2, (3, 1, None)))
    assert bench.read(entry("ecmp", {1: 1})) == [written]
    assert bench.read(p4r.ActionProfileGroup()) == bench.read(p4r.ActionProfileMember()) == []
    groups = [
        [bench.datapath.members[ECMP, id_].args[0] for id_ in members]
        for members in bench.datapath.groups.values()
    ]
    assert groups == [[1, 1, 1], [3]]
    changed = one_shot(1, (4, 1, None))
    assert bench.write(MODIFY, changed) is None
    assert len(bench.datapath.members) == 2
    assert code(bench.write(INSERT, member(1))) == "INVALID_ARGUMENT"
    assert bench.write(DELETE, changed) is None
    assert bench.write(DELETE, one_shot(2)) is None
    assert bench.datapath.members == bench.datapath.groups == {}


def test_one_shots_keep_to_the_sizes(bench: Bench) -> None:
    assert code(bench.write(INSERT, one_shot(1, (1, 9, None)))) == "INVALID_ARGUMENT"
    assert code(bench.write(INSERT, one_shot(1, (1, 0, None)))) == "INVALID_ARGUMENT"
    assert bench.datapath.members == {}
    bench.datapath.failing = "no"
    assert code(bench.write(INSERT, one_shot(1, (1, 1, None)))) == "INTERNAL"
    assert bench.datapath.members == bench.datapath.groups == {}


def test_counters_by_cell_and_by_wildcard(bench: Bench) -> None:
    cell = p4r.CounterEntry(counter_id=IDS["port_in"])
    cell.index.index = 3
    cell.data.packet_count, cell.data.byte_count = 2, 128
    assert bench.write(MODIFY, cell) is None
    asked = p4r.CounterEntry(counter_id=IDS["port_in"])
    asked.index.index = 3
    assert bench.read(asked) == [cell]
    assert len(bench.read(p4r.CounterEntry())) == 512
    every = p4r.CounterEntry(counter_id=IDS["port_in"])
    every.data.packet_count = 0
    assert bench.write(MODIFY, every) is None
    assert {(c.data.packet_count, c.data.byte_count) for c in bench.read(p4r.CounterEntry())} == {(0, 0)}
    assert code(bench.write(INSERT, cell)) == "INVALID_ARGUMENT"
    cell.index.index = 512
    assert code(bench.write(MODIFY, cell)) == "OUT_OF_RANGE"
    cell.index.index = -1
    assert code(bench.write(MODIFY, cell)) == "INVALID_ARGUMENT"


def route(packets: int = 0, bytes_: int = 0) -> Any:
    """A table entry with a direct counter, and what that has counted."""
    made = entry("route", {1: lpm(0x0A000000, 8)}, action("set_nexthop", 1))
    made.counter_data.packet_count, made.counter_data.byte_count = packets, bytes_
    return made


@pytest.mark.parametrize("counted", [(-1, 5), (5, -1), (-(2**63), 2**63 - 1)])
def test_a_negative_count_is_refused_and_changes_nothing(bench: Bench, counted: tuple[int, int]) -> None:
    data = p4r.CounterData(packet_count=counted[0], byte_count=counted[1])
    of_entry = entry("route", {1: lpm(0x0A000000, 8)})
    bench.insert(route(3, 4))
    cell = p4r.CounterEntry(counter_id=IDS["port_in"], data=data)
    cell.index.index = 3
    direct = p4r.DirectCounterEntry(table_entry=of_entry, data=data)
    for message in (cell, direct, route(*counted)):
        refusal = bench.write(MODIFY, message)
        assert code(refusal) == "INVALID_ARGUMENT"
        assert refusal is not None
        assert f"_count {min(counted)} is negative" in refusal[1]
    assert [c.data.packet_count for c in bench.read(p4r.DirectCounterEntry(table_entry=of_entry))] == [3]
    assert not any(c.data.packet_count or c.data.byte_count for c in bench.read(p4r.CounterEntry()))
    assert bench.write(DELETE, route()) is None
    assert code(bench.write(INSERT, route(*counted))) == "INVALID_ARGUMENT"
    assert bench.datapath.entries.keys() == Bench().datapath.entries.keys()


def test_counts_beyond_an_int64_are_read_as_the_most(bench: Bench) -> None:
    bench.insert(route(2**63 - 1, 2**63 - 1))
    for cell in [*bench.datapath.counters, ("FeaturesIngress.port_in", 1)]:
        bench.datapath.counters[cell] = (2**63, 2**64 - 1)
    [read] = bench.read(route())
    [direct] = bench.read(p4r.DirectCounterEntry(table_entry=entry("route", {1: lpm(0x0A000000, 8)})))
    indexed = bench.read(p4r.CounterEntry(counter_id=IDS["port_in"]))[1]
    for data in (read.counter_data, direct.data, indexed.data):
        assert (data.packet_count, data.byte_count) == (2**63 - 1, 2**63 - 1)


def test_an_exception_is_its_updates_error_and_the_others_are_tried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("not foreseen")

    monkeypatch.setattr(bench.datapath, "counter_write", broken)
    cell = p4r.CounterEntry(counter_id=IDS["port_in"], data=p4r.CounterData(packet_count=1))
    updates = [update(INSERT, l2(1)), update(MODIFY, cell), update(INSERT, l2(2))]
    first, second, third = bench.entities.write(updates)
    assert first is third is None
    assert second is not None
    assert second.code.name == "INTERNAL"
    assert len(bench.read(entry("l2"))) == 2


def test_meters_by_cell_and_by_wildcard(bench: Bench) -> None:
    cell = p4r.MeterEntry(meter_id=IDS["port_meter"])
    cell.index.index = 3
    cell.config.CopyFrom(p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4))
    assert bench.write(MODIFY, cell) is None
    read = bench.read(p4r.MeterEntry(meter_id=IDS["port_meter"]))
    assert read[3] == cell
    assert not any(m.HasField("config") for m in read[:3] + read[4:])
    cell.config.eburst = 1
    assert code(bench.write(MODIFY, cell)) == "INVALID_ARGUMENT"
    cell.counter_data.SetInParent()
    assert code(bench.write(MODIFY, cell)) == "UNIMPLEMENTED"
    assert bench.write(MODIFY, p4r.MeterEntry(meter_id=IDS["port_meter"])) is None
    assert bench.datapath.meters == {}


def test_registers_by_cell_and_by_wildcard(bench: Bench) -> None:
    cell = p4r.RegisterEntry(register_id=IDS["seen"])
    cell.index.index = 15
    cell.data.bitstring = b"\x01\x00"
    assert bench.write(MODIFY, cell) is None
    asked = p4r.RegisterEntry(register_id=IDS["seen"])
    assert [r.data.bitstring for r in bench.read(asked)] == [b"\0"] * 15 + [b"\x01\0"]
    asked.index.index = 15
    assert bench.read(asked) == [cell]
    asked.index.index = 16
    with pytest.raises(Exception, match="index 16 is out of range: its size is 16"):
        bench.read(asked)
    cell.data.bitstring = b"\x01" + bytes(8)
    assert code(bench.write(MODIFY, cell)) == "INVALID_ARGUMENT"
    cell.data.bool = True
    assert code(bench.write(MODIFY, cell)) == "INVALID_ARGUMENT"


def multicast(id_: int, *replicas: tuple[int, int]) -> Any:
    made = p4r.PacketReplicationEngineEntry()
    made.multicast_group_entry.multicast_group_id = id_
    for port, instance in replicas:
        made.multicast_group_entry.replicas.add(port=octets(port), instance=instance)
    return made


def session(id_: int, *ports: int, length: int = 0) -> Any:
    made = p4r.PacketReplicationEngineEntry()
    made.clone_session_entry.session_id = id_
    made.clone_session_entry.packet_length_bytes = length
    for port in ports:
        made.clone_session_entry.replicas.add(port=octets(port), instance=1)
    return made


def test_multicast_groups_and_clone_sessions(bench: Bench) -> None:
    bench.insert(multicast(1, (1, 0), (2, 1), (2, 2)), multicast(2), session(9, 255, length=64))
    assert bench.datapath.multicast == {1: ((1, 0), (2, 1), (2, 2)), 2: ()}
    assert bench.datapath.sessions == {9: (((255, 1),), 64)}
    every = p4r.PacketReplicationEngineEntry()
    every.multicast_group_entry.SetInParent()
    assert bench.read(every) == [multicast(1, (1, 0), (2, 1), (2, 2)), multicast(2)]
    assert bench.read(session(9)) == [session(9, 255, length=64)]
    assert bench.read(session(8)) == []
    assert bench.write(MODIFY, multicast(1, (3, 0))) is None
    assert bench.write(DELETE, session(9)) is None
    assert bench.datapath.sessions == {}
    assert bench.datapath.multicast[1] == ((3, 0),)


def test_deprecated_port_numbers_are_read_back_as_such(bench: Bench) -> None:
    old = p4r.PacketReplicationEngineEntry()
    old.clone_session_entry.session_id = 5
    old.clone_session_entry.replicas.add(egress_port=255, instance=1)
    watching = group(5, (1, 1))
    watching.members[0].watch = 7
    bench.insert(old, member(1), watching)
    assert bench.datapath.sessions == {5: (((255, 1),), 0)}
    assert bench.read(session(5)) == [old]
    assert bench.read(p4r.ActionProfileGroup()) == [watching]


def test_what_replication_refuses(bench: Bench) -> None:
    bench.insert(multicast(1, (1, 0)))
    for kind, message, expected in (
        (INSERT, multicast(1), "ALREADY_EXISTS"),
        (MODIFY, multicast(2), "NOT_FOUND"),
        (DELETE, session(2), "NOT_FOUND"),
        (INSERT, multicast(0), "INVALID_ARGUMENT"),
        (INSERT, multicast(1 << 16), "INVALID_ARGUMENT"),
        (INSERT, session(0), "INVALID_ARGUMENT"),
        (INSERT, session(1 << 15), "INVALID_ARGUMENT"),
        (INSERT, multicast(3, (1, 1), (1, 1)), "INVALID_ARGUMENT"),
        (INSERT, p4r.PacketReplicationEngineEntry(), "INVALID_ARGUMENT"),
    ):
        assert code(bench.write(kind, message)) == expected
    classed = session(3, 1)
    classed.clone_session_entry.class_of_service = 1
    assert code(bench.write(INSERT, classed)) == "UNIMPLEMENTED"
    backed = multicast(3, (1, 1))
    backed.multicast_group_entry.replicas[0].backup_replicas.add(port=b"\2")
    assert code(bench.write(INSERT, backed)) == "UNIMPLEMENTED"


def test_value_sets_are_replaced_whole(bench: Bench) -> None:
    def values(*numbers: int) -> Any:
        made = p4r.ValueSetEntry(value_set_id=IDS["ip_types"])
        for number in numbers:
            made.members.add().match.add(field_id=1).exact.value = octets(number)
        return made

    assert bench.write(MODIFY, values(0x800, 0x86DD)) is None
    assert bench.datapath.value_sets == {"FeaturesParser.ip_types": ((Exact(0x800),), (Exact(0x86DD),))}
    assert bench.read(p4r.ValueSetEntry()) == [values(0x800, 0x86DD)]
    assert code(bench.write(INSERT, values(1))) == "INVALID_ARGUMENT"
    assert code(bench.write(MODIFY, values(1, 1))) == "ALREADY_EXISTS"
    assert code(bench.write(MODIFY, values(1, 2, 3, 4, 5))) == "RESOURCE_EXHAUSTED"
    assert bench.write(MODIFY, values()) is None
    assert bench.datapath.value_sets["FeaturesParser.ip_types"] == ()


def digest(timeout_ns: int, size: int, ack_ns: int) -> Any:
    made = p4r.DigestEntry(digest_id=IDS["learn_t"])
    made.config.max_timeout_ns, made.config.max_list_size, made.config.ack_timeout_ns = (
        timeout_ns,
        size,
        ack_ns,
    )
    return made


def learned(bench: Bench) -> list[list[int]]:
    """The first field of each message of each list that was sent."""
    return [
        [int.from_bytes(data.struct.members[0].bitstring, "big") for data in m.digest.data]
        for m in bench.sent
    ]


def test_digests_are_off_until_a_controller_wants_them(bench: Bench) -> None:
    bench.entities.digests.learned("learn_t", (1, 2))
    assert bench.sent == []
    assert code(bench.write(MODIFY, digest(0, 1, 0))) == "NOT_FOUND"
    bench.insert(digest(0, 1, 0))
    assert code(bench.write(INSERT, digest(0, 1, 0))) == "ALREADY_EXISTS"
    bench.entities.digests.learned("learn_t", (1, 2))
    assert learned(bench) == [[1]]
    assert bench.sent[0].digest.digest_id == IDS["learn_t"]
    assert bench.read(p4r.DigestEntry()) == [digest(0, 1, 0)]
    assert bench.write(DELETE, digest(0, 1, 0)) is None
    bench.entities.digests.learned("learn_t", (3, 2))
    assert len(bench.sent) == 1


def test_digests_are_bundled_by_number_and_by_time(bench: Bench) -> None:
    async def scenario() -> None:
        sent = asyncio.Event()
        bench.sent = Notifying(sent)  # type: ignore[assignment]
        bench.entities.digests._send = bench.sent.append
        bench.insert(digest(20_000_000, 3, 0))
        for value in (1, 2, 2, 3, 4, 4):
            bench.entities.digests.learned("learn_t", (value, 0))
        assert learned(bench) == [[1, 2, 3]]
        sent.clear()
        await asyncio.wait_for(sent.wait(), 10)
        assert learned(bench) == [[1, 2, 3], [4]]

    asyncio.run(scenario())


class Notifying(list[Any]):
    """A list that tells when it grows."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def append(self, item: Any) -> None:
        super().append(item)
        self._event.set()


def test_digests_wait_for_their_acknowledgement(bench: Bench) -> None:
    bench.insert(digest(0, 1, 10**12))
    for _ in range(2):
        bench.entities.digests.learned("learn_t", (1, 0))
    assert learned(bench) == [[1]]
    sent = bench.sent[0].digest
    bench.entities.digests.acknowledged(p4r.DigestListAck(digest_id=sent.digest_id, list_id=sent.list_id))
    bench.entities.digests.learned("learn_t", (1, 0))
    assert learned(bench) == [[1], [1]]


def test_queues_are_read_by_type_and_port(bench: Bench) -> None:
    bench.datapath.waiting = {2: Queue(1, 1500, 7, 9000), 3: Queue(0, 0, 0, 0)}
    bench.datapath.long = {2: 5, 4: 0}

    def read(type_: int, port: int) -> dict[tuple[int, int], tuple[int, int]]:
        found = {}
        for each in bench.read(p4r.ExternEntry(extern_type_id=type_, extern_id=port)):
            data = p4r.CounterData()
            assert each.entry.Unpack(data)
            found[each.extern_type_id, each.extern_id] = data.packet_count, data.byte_count
        return found

    assert read(0, 2) == {(DROPPED, 2): (7, 9000), (WAITING, 2): (1, 1500), (TOO_LONG, 2): (5, 0)}
    assert read(TOO_LONG, 0) == {(TOO_LONG, 2): (5, 0), (TOO_LONG, 4): (0, 0)}
    assert read(DROPPED, 0) == {(DROPPED, 2): (7, 9000), (DROPPED, 3): (0, 0)}
    with pytest.raises(Refused, match="no extern has type 0x90"):
        read(0x90, 0)


def test_an_empty_entity_and_an_extern_are_refused(bench: Bench) -> None:
    refused = bench.entities.write(
        [p4r.Update(type=INSERT), p4r.Update(type=INSERT, entity=p4r.Entity(extern_entry={}))]
    )
    assert [r.code.name for r in refused if r is not None] == ["INVALID_ARGUMENT", "UNIMPLEMENTED"]
