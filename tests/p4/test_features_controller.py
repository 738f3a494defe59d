"""The controller's side: packet-in, packet-out, digests; action profiles and selectors."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from finsy import (
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4DigestEntry,
    P4DigestList,
    P4DigestListAck,
    P4IndirectAction,
    P4Member,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, unbits
from tests.p4.targets import CPU_PORT, Target
from tests.p4.test_features_hash import crc16


def payload(kind: int, value: int = 0) -> bytes:
    return ether(0xA100, bits([(kind, 8), (value, 32)]) + b"rest")


def packet_out(port: int, mode: int, packet: bytes) -> bytes:
    return bits([(port, 9), (mode, 3), (0, 4)]) + packet


def test_packet_in_has_the_controller_header(start: Start) -> None:
    packet = payload(1, 0xCAFE)
    assert start("cpu").send(3, packet) == [(CPU_PORT, bits([(3, 9), (5, 7), (0xCAFE, 32)]) + packet)]


def test_packet_out_leaves_without_it(start: Start) -> None:
    packet = ether(0x1234, b"from the controller")
    assert start("cpu").send(CPU_PORT, packet_out(2, 0, packet)) == [(2, packet)]


def test_packet_out_tells_the_program_what_to_do(start: Start) -> None:
    packet = ether(0x1234, b"from the controller")
    assert start("cpu").send(CPU_PORT, packet_out(4, 5, packet)) == [(4, ether(0x1234, packet[14:], src=5))]


def test_packet_out_to_the_controller_comes_back(start: Start) -> None:
    packet = ether(0x1234, b"echo")
    assert start("cpu").send(CPU_PORT, packet_out(CPU_PORT, 0, packet)) == [
        (CPU_PORT, bits([(CPU_PORT, 9), (5, 7), (0, 32)]) + packet)
    ]


def test_packet_ins_stay_in_order(start: Start) -> None:
    batch = start("cpu").send_batch([(1, payload(1, value)) for value in range(100)])
    assert [unbits(packet, (9, 7, 32))[2] for packet in batch.controller] == list(range(100))


# --- digests ---


def digests(target: Target, count: int) -> list[tuple[str, dict[str, int]]]:
    """The next `count` digest messages."""
    found: list[tuple[str, dict[str, int]]] = []
    while len(found) < count:
        message = target.client.next_message()
        if isinstance(message, P4DigestList):
            found += [(message.digest_id, data) for data in message.data]
            target.client.send(P4DigestListAck(message.digest_id, message.list_id))
    return found


def digest_entry(name: str) -> P4DigestEntry:
    return P4DigestEntry(name, max_list_size=1, max_timeout_ns=0, ack_timeout_ns=0)


def test_digests_carry_their_fields(start: Start) -> None:
    target = start("cpu")
    with target.installed(digest_entry("seen_t"), digest_entry("other_seen_t")):
        for value in (7, 8):
            assert target.send(2, payload(2, value)) == [(2, payload(2, value))]
        expected = [("seen_t", {"address": 0x020000000002, "port": 2, "value": value}) for value in (7, 8)]
        assert digests(target, 2) == expected
        assert target.send(1, payload(8, 5)) == []
        assert digests(target, 1) == [("other_seen_t", {"kind": 8, "wide": 5 << 64})]


def test_digest_and_packet_in_together(start: Start) -> None:
    target = start("cpu")
    with target.installed(digest_entry("seen_t")):
        ((port, _),) = target.send(4, payload(3, 99))
        assert port == CPU_PORT
        assert digests(target, 1) == [("seen_t", {"address": 0x020000000002, "port": 4, "value": 99})]


# --- action profiles and selectors ---

FLOW = (16, 32, 32, 16, 16)


def flow(service: int, src: int = 1, dst: int = 2, src_port: int = 3, dst_port: int = 4) -> bytes:
    return ether(0xA200, bits(zip((service, src, dst, src_port, dst_port), FLOW, strict=True)))


def choices(target: Target, packet: bytes) -> tuple[int, list[int]]:
    """The port at which a flow leaves, and what profile, selector and selector32 chose."""
    ((port, output),) = target.send(1, packet)
    return port, unbits(output[len(packet) :], (16, 16, 16))


def member(profile: str, number: int, value: int) -> P4ActionProfileMember:
    return P4ActionProfileMember(profile, member_id=number, action=P4TableAction("choose", value=value))


def group(profile: str, number: int, members: list[int]) -> P4ActionProfileGroup:
    return P4ActionProfileGroup(
        profile, group_id=number, max_size=8, members=[P4Member(each, weight=1) for each in members]
    )


def entry(table: str, service: int, **action: Any) -> P4TableEntry:
    match = P4TableMatch({"hdr.flow.service": service})
    return P4TableEntry(table, match=match, action=P4IndirectAction(**action))


def test_without_entries_nothing_is_chosen(start: Start) -> None:
    assert choices(start("selector"), flow(1)) == (1, [0xFFFF] * 3)


def test_profile_members_are_shared_and_changed_at_once(start: Start) -> None:
    target = start("selector")
    with target.installed(
        member("profile", 1, 100),
        entry("profile_table", 1, member_id=1),
        entry("profile_table", 2, member_id=1),
    ):
        assert [choices(target, flow(service))[1][0] for service in (1, 2, 3)] == [100, 100, 0xFFFF]
        target.client.modify(member("profile", 1, 200))
        assert [choices(target, flow(service))[1][0] for service in (1, 2)] == [200, 200]


def test_member_of_a_selector_without_group(start: Start) -> None:
    target = start("selector")
    with target.installed(member("selector", 1, 55), entry("selector_table", 1, member_id=1)):
        assert choices(target, flow(1))[1][1] == 55


def test_member_forwards(start: Start) -> None:
    target = start("selector")
    to_port = P4ActionProfileMember("selector", member_id=3, action=P4TableAction("to_port", port=4))
    with target.installed(to_port, entry("selector_table", 1, member_id=3)):
        assert choices(target, flow(1)) == (4, [0xFFFF, 4, 0xFFFF])


def test_group_spreads_by_the_hash_of_the_flow(start: Start) -> None:
    target, rng = start("selector"), random.Random(1)
    members = [10, 20, 30, 40]
    with target.installed(
        *(member("selector", number, number) for number in members),
        group("selector", 1, members),
        entry("selector_table", 1, group_id=1),
    ):
        chosen = Counter[int]()
        for _ in range(120):
            key = [rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(16), rng.getrandbits(16)]
            packet = flow(1, *key)
            _, (_, value, _) = choices(target, packet)
            assert value == members[crc16(bits(zip(key, FLOW[1:], strict=True))) % 4]
            chosen[value] += 1
        assert set(chosen) == set(members)


@pytest.mark.parametrize("present", [[1], [1, 2], [3, 1, 2], [2, 3]])
def test_group_changes(start: Start, present: list[int]) -> None:
    target = start("selector")
    with target.installed(
        *(member("selector32", number, number) for number in (1, 2, 3)),
        group("selector32", 1, [1, 2, 3]),
    ):
        match = P4TableMatch({"hdr.flow.dst": (0x0A000000, 8)})
        with target.installed(
            P4TableEntry("selector32_table", match=match, action=P4IndirectAction(group_id=1))
        ):
            target.client.modify(group("selector32", 1, present))
            chosen = {choices(target, flow(0, src=src, dst=0x0A000001))[1][2] for src in range(60)}
            assert chosen == set(present)
            target.client.modify(group("selector32", 1, [1, 2, 3]))


def test_one_shot_action_sets(start: Start) -> None:
    target = start("selector")
    actions = [(1, P4TableAction("choose", value=7)), (1, P4TableAction("choose", value=8))]
    match = P4TableMatch({"hdr.flow.service": 5})
    entry = P4TableEntry("selector_table", match=match, action=P4IndirectAction(actions))
    with target.installed(entry):
        assert {choices(target, flow(5, src=src))[1][1] for src in range(40)} == {7, 8}
