"""What one host's carriers can do to others: the switch bounds their number, their slots and their loads."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from finsy import P4TableAction, P4TableEntry, P4TableMatch

from controlplane.constants import RefusedReason
from controlplane.slot_clock import clock_entry
from tests.p4.conftest import Start
from tests.p4.fabric import carrier, counted, host_ip, leaf_entries, only, query, slot_header
from tests.p4.targets import Target
from wire.slot_header import EPOCH_NS, EPOCHS, LANES, MAX_U32, SLOTS, Kind, SlotHeader, announcement, epoch_of

LIMIT = 1000
PORT = 1  # of the host whose carriers are limited
_ERAS = itertools.count(1)


def limits(load: int = LIMIT, carriers: int = MAX_U32) -> P4TableEntry:
    action = P4TableAction("set_limits", load=load, carriers=carriers)
    return P4TableEntry("limits", match=P4TableMatch(ingress_port=PORT), action=action)


@pytest.fixture(scope="module")
def leaf(start: Start) -> Iterator[Target]:
    target = start("fabric")
    with target.installed(*leaf_entries(), limits()):
        yield target


@pytest.fixture
def base() -> int:
    """A slot of an epoch newer than those of the tests before it."""
    return next(_ERAS) * 100 * LANES


def announce(leaf: Target, header: SlotHeader, dst: str = host_ip(2), port: int = PORT) -> SlotHeader:
    return slot_header(only(leaf.send(port, carrier(header, dst, port)))[1])


def load(leaf: Target, slot: int, port: int = 2) -> int:
    lane = slot % LANES
    assert query(leaf, port, epochs=True).lanes[lane].load == epoch_of(slot)
    return query(leaf, port).lanes[lane].load


def refused(leaf: Target, reason: RefusedReason, port: int = PORT) -> int:
    return counted(leaf, "refused", port * len(RefusedReason) + reason)[0]


def test_a_host_announces_at_most_what_its_link_carries(leaf: Target, base: int) -> None:
    before = refused(leaf, RefusedReason.LOAD)
    assert announce(leaf, announcement(base, [700, MAX_U32])).lanes[0].delta == 700
    assert [load(leaf, base + each) for each in range(3)] == [700, LIMIT, 0]
    assert refused(leaf, RefusedReason.LOAD) == before + 1
    assert announce(leaf, announcement(base, [700])).lanes[0].delta == 300
    assert load(leaf, base) == LIMIT
    assert refused(leaf, RefusedReason.LOAD) == before + 2


def test_the_limit_is_one_for_all_links(leaf: Target, base: int) -> None:
    for dst, port, counts in ((host_ip(2), 2, 600), ("10.1.0.1", 4, 400), (host_ip(2), 2, 600)):
        announce(leaf, announcement(base, [600]), dst)
        assert load(leaf, base, port) == counts


def test_a_host_takes_back_what_it_has_announced_and_no_more(leaf: Target, base: int) -> None:
    announce(leaf, announcement(base, [500]), host_ip(1), port=2)  # nothing limits the other host
    announce(leaf, announcement(base, [500]), "10.1.0.1", port=2)
    announce(leaf, announcement(base, [200]), "10.1.0.1")
    before = refused(leaf, RefusedReason.LOAD)
    announce(leaf, announcement(base, [-150]), "10.1.0.1")
    assert refused(leaf, RefusedReason.LOAD) == before
    assert announce(leaf, announcement(base, [-MAX_U32]), "10.1.0.1").lanes[0].delta == -50
    assert refused(leaf, RefusedReason.LOAD) == before + 1
    announce(leaf, announcement(base, [LIMIT]), "10.1.0.1")
    assert refused(leaf, RefusedReason.LOAD) == before + 1


def test_each_slot_has_the_whole_limit_and_a_port_cannot_go_back(leaf: Target, base: int) -> None:
    for slot in range(base, base + 3 * LANES):
        announce(leaf, announcement(slot, [0] * (LANES - 1) + [LIMIT]))
        assert load(leaf, slot + LANES - 1) == LIMIT
    announce(leaf, announcement(base + 2 * LANES, [LIMIT]), "10.1.0.1")
    assert load(leaf, base + 2 * LANES, 4) == 0


def test_the_limit_equals_a_plain_count(leaf: Target, base: int) -> None:
    rng = random.Random(1)
    counted_ = [0] * LANES
    for _ in range(60):
        deltas = [rng.choice([rng.randrange(-400, 401), MAX_U32, -MAX_U32]) for _ in range(LANES)]
        behind = announce(leaf, announcement(base, deltas))
        for lane, delta in enumerate(deltas):
            after = min(max(counted_[lane] + delta, 0), LIMIT)
            assert behind.lanes[lane].delta == after - counted_[lane]
            counted_[lane] = after
    assert [load(leaf, base + lane) for lane in range(LANES)] == counted_


def test_epochs_wrap_in_the_limit_too(leaf: Target) -> None:
    announce(leaf, announcement(EPOCHS // 2 * LANES, [0] * LANES))  # restarts what other tests left
    for slot in (EPOCHS * LANES - LANES, 0):
        announce(leaf, announcement(slot, [700]))
        announce(leaf, announcement(slot, [700]))
        assert load(leaf, slot) == LIMIT


def test_more_carriers_than_a_port_may_send_are_refused(leaf: Target, base: int) -> None:
    packet = carrier(announcement(base, [1]), host_ip(2))
    before = refused(leaf, RefusedReason.RATE)
    leaf.client.modify(limits(carriers=3))  # in 65.5 ms, in which some may have come already
    try:
        outputs = leaf.send_batch([(PORT, packet)] * 40).outputs
    finally:
        leaf.client.modify(limits())
    came = sum(map(bool, outputs))
    lost = 40 - came
    assert lost > 0
    assert refused(leaf, RefusedReason.RATE) == before + lost
    announce(leaf, announcement(base, [1]))
    assert load(leaf, base) == came + 1


def test_answers_to_carriers_that_came_are_not_among_those_that_a_port_may_send(
    leaf: Target, base: int
) -> None:
    asked = carrier(announcement(base, [1]), host_ip(PORT), src_port=2)
    answer = carrier(replace(announcement(base, []), kind=Kind.FEEDBACK), host_ip(2))
    before = refused(leaf, RefusedReason.RATE)
    leaf.client.modify(limits(carriers=3))
    try:
        assert all(leaf.send_batch([(2, asked), (PORT, answer)] * 40).outputs)
        assert refused(leaf, RefusedReason.RATE) == before
        lost = 40 - sum(map(bool, leaf.send_batch([(PORT, answer)] * 40).outputs))  # nobody asked
        assert lost > 0
        assert refused(leaf, RefusedReason.RATE) == before + lost
        assert all(leaf.send_batch([(2, asked), (PORT, answer)] * 10).outputs)  # though the number is used up
    finally:
        leaf.client.modify(limits())


def test_a_late_announcement_counts_nothing_and_is_no_excess(leaf: Target, base: int) -> None:
    announce(leaf, announcement(base + LANES, [100]))
    before = refused(leaf, RefusedReason.LOAD)
    for delta in (100, -100):
        assert announce(leaf, announcement(base, [delta])).lanes[0].delta == 0
    assert refused(leaf, RefusedReason.LOAD) == before
    assert load(leaf, base + LANES) == 100


def test_a_carrier_from_anothers_address_is_counted_at_its_port(leaf: Target, base: int) -> None:
    before = refused(leaf, RefusedReason.SOURCE)
    assert not leaf.send(PORT, carrier(announcement(base, [1]), host_ip(2), src_port=3))
    assert refused(leaf, RefusedReason.SOURCE) == before + 1


SLOT_NS = 10**10  # of the switch's clock: long enough that no test depends on how fast it runs


@contextlib.contextmanager
def clock(leaf: Target, slot: int, passed: float) -> Iterator[None]:
    """Within, the switch takes `slot` for the present one, of which a part has passed."""
    now_us = query(leaf, 2).bytes_received
    unix_ns = EPOCH_NS + round((slot + passed) * SLOT_NS)
    leaf.client.modify(clock_entry(now_us, unix_ns, SLOT_NS))
    try:
        yield
    finally:
        leaf.client.modify(P4TableEntry("clock", is_default_action=True))


@pytest.mark.parametrize("present", [123_456_789, SLOTS, SLOTS - 1, 7 * SLOTS + 4], ids=str)
def test_carriers_about_other_slots_than_the_present_are_refused(leaf: Target, present: int) -> None:
    def passes(base: int) -> bool:
        before = refused(leaf, RefusedReason.SLOT)
        outputs = leaf.send(PORT, carrier(announcement(base, [1]), host_ip(2)))
        assert refused(leaf, RefusedReason.SLOT) == before + (not outputs)
        return bool(outputs)

    offsets = [-SLOTS // 2, -10 * LANES, -LANES, -3, -2, -1, 0, 1, 2, LANES, 10 * LANES, SLOTS // 2]
    late = {-3, -2, -1, 0}
    for passed, allowed in ((0.1, late), (0.5, late), (0.9, {*late, 1})):
        with clock(leaf, present, passed):
            assert {offset for offset in offsets if passes(present + offset)} == allowed
    assert passes(present + LANES)  # where nobody has set the clock


def test_a_clock_that_nobody_sets_refuses_nothing(leaf: Target) -> None:
    now_us = query(leaf, 2).bytes_received
    for age_us, comes in ((2**28 - 10**8, False), (2**28, True)):
        entry = clock_entry((now_us - age_us) % 2**48, EPOCH_NS, SLOT_NS)
        leaf.client.modify(entry)
        try:
            assert bool(leaf.send(PORT, carrier(announcement(10**6, [1]), host_ip(2)))) == comes
        finally:
            leaf.client.modify(P4TableEntry("clock", is_default_action=True))
