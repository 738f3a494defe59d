"""How far another host's slots are ahead: what round trips say of it holds, whatever the path does."""

from __future__ import annotations

import random
import socket

import pytest

from hostbpf.carriers import carriers
from hostbpf.carriers.skew import LATE_UNIT_NS, Skews, offset
from hostbpf.clock import SlotClock
from tests.hostbpf.conftest import A, B, Pair
from tests.hostbpf.taps import wait_until
from wire.flow import Flow

MS = 10**6


def test_the_offset_is_within_its_bounds_whatever_the_delays() -> None:
    draw = random.Random(1)
    for _ in range(1000):
        ahead, position = draw.randrange(-(10**10), 10**10), draw.randrange(60 * MS)
        there, back = draw.randrange(10 * MS), draw.randrange(10 * MS)
        late = (position + there + ahead) // LATE_UNIT_NS * LATE_UNIT_NS
        bounds = offset(position, late, there + back)
        assert bounds.low <= ahead <= bounds.high
        assert bounds.high - bounds.low == there + back + LATE_UNIT_NS


def test_the_quickest_round_trip_counts_until_this_hosts_slots_move() -> None:
    skews = Skews()
    for rtt_ns in (5 * MS, MS, 3 * MS):
        skews.add("peer", 0, 2 * MS, rtt_ns)
    skews.add("other", 0, 0, 0)
    assert skews.read() == {"peer": offset(0, 2 * MS, MS), "other": offset(0, 0, 0)}
    skews.clear()
    assert skews.read() == {}


@pytest.mark.root
@pytest.mark.parametrize("ahead_ns", [0, 30 * MS, -30 * MS, 5000 * MS])
def test_two_hosts_find_how_far_their_slots_are_apart(pair: Pair, ahead_ns: int) -> None:
    """b's begin earlier by a known time, within a slot or by many: each host's bounds contain it, whatever
    the machine does, and leave out 0 once a round trip was much quicker."""
    at_b_clock = SlotClock.shared(60)
    at_a_clock = SlotClock(at_b_clock.slot_ns, at_b_clock.epoch_ns + ahead_ns)
    flows = Flow(A, 5000, B, 6000, socket.IPPROTO_UDP), Flow(B, 5000, A, 6000, socket.IPPROTO_UDP)
    with (
        carriers.attached(pair.index_a, at_a_clock, netns=pair.a) as at_a,
        carriers.attached(pair.index_b, at_b_clock, netns=pair.b) as at_b,
    ):
        rings = [end.feedback(lambda _: None) for end in (at_a, at_b)]
        assert at_a.skews() == {}

        def asked() -> bool:
            for end, flow, ring in zip((at_a, at_b), flows, rings, strict=True):
                end.probe(flow)
                ring.poll(10)
            answered = {**at_a.skews(), **at_b.skews()}
            return len(answered) == 2 and all(high - low < 10 * MS for low, high in answered.values())

        for end, flow in zip((at_a, at_b), flows, strict=True):
            end.announce(flow)
        wait_until(asked)
        b_ahead, a_ahead = at_a.skews()[B], at_b.skews()[A]
        at_a.set_clock(at_b_clock)
        assert at_a.skews() == {}
        for ring in rings:
            ring.close()
    assert b_ahead.low <= ahead_ns <= b_ahead.high
    assert a_ahead.low <= -ahead_ns <= a_ahead.high
    if ahead_ns:
        assert not b_ahead.low <= 0 <= b_ahead.high
        assert not a_ahead.low <= 0 <= a_ahead.high
