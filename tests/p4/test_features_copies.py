"""Copies of a packet: clones, multicast, resubmitted and recirculated packets; truncation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from finsy import P4CloneSessionEntry, P4MulticastGroupEntry

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, unbits
from tests.p4.targets import Output, Target

CLONE_INGRESS, CLONE_EGRESS, MULTICAST, RESUBMIT, RECIRCULATE, TRUNCATE, DROP_IN, DROP_OUT = (
    1 << bit for bit in range(8)
)
NORMAL, INGRESS_CLONE, EGRESS_CLONE, _, RECIRCULATED, REPLICATED, RESUBMITTED = range(7)
REPORT = (32, 9, 9, 16, 14, 32, 16, 16, 32)
PAYLOAD = b"sixteen bytes pl"
SRC = 0x02000000BEEF
SIZE = 14 + 5 + len(PAYLOAD)


@dataclass(frozen=True)
class Seen:
    """What a copy says of itself."""

    port: int
    instance_type: int
    ingress_port: int
    egress_port: int
    rid: int
    rounds: int
    packet_length: int
    kept: int
    lost: int
    ingress_length: int
    changed: bool  # whether ingress has marked the Ethernet header
    rest: bytes


def look(output: Output) -> Seen:
    port, packet = output
    fields = unbits(packet[19:], REPORT)
    return Seen(port, *fields, packet[5] == 0xEE, packet[19 + 22 :])  # type: ignore[arg-type,call-arg]


def run(target: Target, op: int, group: int = 0, argument: int = 0, port: int = 1) -> list[Seen]:
    packet = ether(
        0xA000, bits([(op, 8), (group, 16), (argument, 16)]) + PAYLOAD, dst=0x1122334455AA, src=SRC
    )
    assert len(packet) == SIZE
    return [look(output) for output in target.send(port, packet)]


@pytest.fixture(scope="module")
def target(start: Start) -> Iterator[Target]:
    """A switch with clone sessions 7 and 9 (several replicas) and multicast groups 5 and 6."""
    target = start("replicate")
    with target.installed(
        P4CloneSessionEntry(7, replicas=[2]),
        P4CloneSessionEntry(9, replicas=[(2, 11), (3, 12)]),
        P4MulticastGroupEntry(5, replicas=[(2, 1), (3, 2), (4, 3)]),
        P4MulticastGroupEntry(6, replicas=[(1, 10), (1, 11)]),
    ):
        yield target


def test_a_packet_alone(target: Target) -> None:
    (seen,) = run(target, 0)
    assert seen == Seen(1, NORMAL, 1, 1, 0, 0, SIZE, 0xBEEF, 0x7777, SIZE, True, PAYLOAD)


def test_clone_from_ingress_is_the_packet_as_it_came(target: Target) -> None:
    original, clone = run(target, CLONE_INGRESS, group=7)
    assert (original.port, original.instance_type, original.changed) == (1, NORMAL, True)
    assert clone == Seen(2, INGRESS_CLONE, 0, 2, 0, 0, SIZE, 0xBEEF, 0, SIZE, False, PAYLOAD)


def test_clone_survives_the_drop_of_its_original(target: Target) -> None:
    (clone,) = run(target, CLONE_INGRESS | DROP_IN, group=7)
    assert (clone.port, clone.instance_type) == (2, INGRESS_CLONE)


def test_clone_to_an_unknown_session_is_none(target: Target) -> None:
    assert [seen.port for seen in run(target, CLONE_INGRESS, group=99)] == [1]


def test_clone_session_with_several_replicas(target: Target) -> None:
    seen = run(target, CLONE_INGRESS, group=9)
    assert [(each.port, each.instance_type, each.rid) for each in seen] == [
        (1, NORMAL, 0),
        (2, INGRESS_CLONE, 11),
        (3, INGRESS_CLONE, 12),
    ]


def test_clone_from_egress_shows_the_changes(target: Target) -> None:
    original, clone = run(target, CLONE_EGRESS, group=7)
    assert (original.port, original.instance_type, original.lost) == (1, NORMAL, 0x7777)
    assert clone.port == clone.egress_port == 2
    assert (clone.instance_type, clone.kept, clone.lost, clone.changed) == (EGRESS_CLONE, 0xBEEF, 0, True)


def test_clone_of_a_packet_that_egress_drops(target: Target) -> None:
    """The clone's own egress drops it too: its header asks for that."""
    assert run(target, CLONE_EGRESS | DROP_OUT, group=7) == []


def test_drops(target: Target) -> None:
    assert run(target, DROP_IN) == []
    assert run(target, DROP_OUT) == []


def test_multicast(target: Target) -> None:
    seen = run(target, MULTICAST, group=5)
    assert [(each.port, each.egress_port, each.rid) for each in seen] == [(2, 2, 1), (3, 3, 2), (4, 4, 3)]
    assert {each.instance_type for each in seen} == {REPLICATED}
    assert {(each.kept, each.lost, each.changed) for each in seen} == {(0xBEEF, 0x7777, True)}


def test_multicast_twice_to_one_port(target: Target) -> None:
    assert sorted((each.port, each.rid) for each in run(target, MULTICAST, group=6)) == [(1, 10), (1, 11)]


def test_multicast_to_an_unknown_group_is_a_drop(target: Target) -> None:
    assert run(target, MULTICAST, group=77) == []


def test_drop_clears_the_multicast_group(target: Target) -> None:
    assert run(target, MULTICAST | DROP_IN, group=5) == []


def test_multicast_and_clone_together(target: Target) -> None:
    assert [each.port for each in run(target, MULTICAST | CLONE_INGRESS, group=5)] == [2, 3, 4]
    with target.installed(P4CloneSessionEntry(5, replicas=[1])):
        seen = run(target, MULTICAST | CLONE_INGRESS, group=5)
        assert [(each.port, each.instance_type) for each in seen] == [
            (1, INGRESS_CLONE),
            (2, REPLICATED),
            (3, REPLICATED),
            (4, REPLICATED),
        ]


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_resubmit_keeps_its_fields(target: Target, rounds: int) -> None:
    (seen,) = run(target, RESUBMIT, argument=rounds, port=3)
    assert (seen.port, seen.rounds, seen.kept, seen.lost) == (3, rounds, 0xBEEF, 0x7777)
    assert (seen.instance_type, seen.changed, seen.rest) == (NORMAL, False, PAYLOAD)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_recirculate_begins_anew_with_what_was_sent(target: Target, rounds: int) -> None:
    (seen,) = run(target, RECIRCULATE, argument=rounds)
    assert (seen.port, seen.rounds, seen.kept) == (1, rounds, 0xBEEF)
    # Every round has put a report in front of the rest.
    assert len(seen.rest) == len(PAYLOAD) + 22 * rounds
    assert seen.ingress_length == SIZE + 22 * rounds


@pytest.mark.parametrize("length", [14, 20, 30, SIZE, 60, 1000])
def test_truncate(target: Target, length: int) -> None:
    packet = ether(0xA000, bits([(TRUNCATE, 8), (0, 16), (length, 16)]) + PAYLOAD)
    ((_, output),) = target.send(1, packet)
    whole = SIZE + 22
    assert len(output) == min(length, whole)
    assert output[6:14] == packet[6:14]


def test_copies_are_not_truncated_with_their_original(target: Target) -> None:
    """simple_switch keeps the length to truncate to with the one packet, and copies do not inherit it."""
    whole = SIZE + 22
    assert [len(each.rest) for each in run(target, TRUNCATE | MULTICAST, group=5, argument=30)] == [
        16,
        16,
        16,
    ]
    sizes = {seen.port: 19 + 22 + len(seen.rest) for seen in run(target, TRUNCATE | CLONE_INGRESS, 7, 45)}
    assert sizes == {1: 45, 2: whole}
    sizes = {seen.port: 19 + 22 + len(seen.rest) for seen in run(target, TRUNCATE | CLONE_EGRESS, 7, 45)}
    assert sizes == {1: 45, 2: whole}
    (seen,) = run(target, TRUNCATE | RECIRCULATE, argument=1)
    assert seen.rest[22:] == PAYLOAD


def test_a_clone_session_cuts_its_copies_or_is_refused(target: Target) -> None:
    """simple_switch_grpc refuses a session with a packet length; ignoring it is not among the choices."""
    session = P4CloneSessionEntry(8, replicas=[3], packet_length_bytes=20)
    try:
        target.client.insert(session)
    except grpc.RpcError:
        return
    try:
        packet = ether(0xA000, bits([(CLONE_INGRESS, 8), (8, 16), (0, 16)]) + PAYLOAD)
        original, clone = target.send(1, packet)
        assert (original[0], len(original[1])) == (1, SIZE + 22)
        assert (clone[0], len(clone[1])) == (3, 20)
    finally:
        target.client.delete(session)
