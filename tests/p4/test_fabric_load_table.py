"""The link load table: the program against a plain model, step by step and in random sequences."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.p4.conftest import Start
from tests.p4.fabric import CAPACITY, carrier, host_ip, leaf_entries, link, only, query, slot_header
from tests.p4.load_table import Link
from tests.p4.targets import Target
from wire.slot_header import EPOCHS, LANES, MAX_U32, Kind, Lane, SlotHeader, announcement

# Every test works on epochs beyond those of the tests before it: then what they left does not matter.
_ERAS = itertools.count(1)


def new_era() -> int:
    """An epoch newer than all that the switch has seen."""
    return next(_ERAS) * 100


@pytest.fixture(scope="module")
def leaf(start: Start) -> Iterator[Target]:
    """A leaf with its whole state; the capacity of link p is 1000 p."""
    target = start("fabric")
    with target.installed(*leaf_entries()):
        yield target


# --- step by step ---


def schedule(epoch: int, *deltas: int) -> SlotHeader:
    """Announce these changes in lanes 0, 1, ... of one epoch; nothing in the others."""
    return replace(announcement(epoch * LANES, deltas), flow=7)


def send(leaf: Target, header: SlotHeader, dst: str = host_ip(2), port: int = 1) -> SlotHeader:
    """Send a carrier (out at port 2, unless stated); its slot header behind the switch."""
    return slot_header(only(leaf.send(port, carrier(header, dst, port)))[1])


def loads(leaf: Target, port: int = 2) -> list[tuple[int, int]]:
    """Epoch and load of every lane of a link."""
    epochs, planned = query(leaf, port, epochs=True).lanes, query(leaf, port).lanes
    return [(epoch.load, lane.load) for epoch, lane in zip(epochs, planned, strict=True)]


def test_a_newer_epoch_restarts_the_lane(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100, 200))
    send(leaf, schedule(era + 1, 30))
    assert loads(leaf)[:3] == [(era + 1, 30), (era + 1, 0), (era + 1, 0)]


def test_the_same_epoch_accumulates(leaf: Target) -> None:
    era = new_era()
    for _ in range(3):
        send(leaf, schedule(era, 100, 7))
    assert loads(leaf)[:3] == [(era, 300), (era, 21), (era, 0)]


def test_a_late_carrier_changes_nothing(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100))
    behind = send(leaf, schedule(era - 1, 50))
    assert loads(leaf)[0] == (era, 100)
    # It is about a slot that has passed: nothing is planned there any more.
    assert (behind.lanes[0].load, behind.lanes[0].headroom) == (0, CAPACITY[2])


@pytest.mark.parametrize("first", range(LANES))
def test_lanes_below_the_first_hold_slots_of_the_next_epoch(leaf: Target, first: int) -> None:
    era = new_era()
    send(leaf, announcement(era * LANES + first, [10 * number for number in range(LANES)]))
    slots = [era * LANES + first + (lane - first) % LANES for lane in range(LANES)]
    assert loads(leaf) == [(slot // LANES, 10 * (slot - slots[first])) for slot in slots]


def test_links_are_independent(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 10))
    send(leaf, schedule(era, 33), dst="10.1.0.1")
    assert (loads(leaf, 2)[0], loads(leaf, 4)[0]) == ((era, 10), (era, 33))


def test_an_announcement_repeated_without_change_is_not_counted_twice(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100))
    again = send(leaf, schedule(era, 0))
    assert loads(leaf)[0] == (era, 100)
    assert again.lanes[0].load == 100


def test_a_lower_rate_gives_back(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100))
    send(leaf, schedule(era, -40))
    assert loads(leaf)[0] == (era, 60)


def test_loads_never_go_negative(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100, 5, -(2**31)))
    send(leaf, schedule(era, -101, -5, -1))
    assert loads(leaf)[:3] == [(era, 0), (era, 0), (era, 0)]
    send(leaf, schedule(era, 10))
    assert loads(leaf)[0] == (era, 10)


def test_loads_never_wrap(leaf: Target) -> None:
    era, most = new_era(), 2**31 - 1
    for expected in (most, 2 * most, MAX_U32, MAX_U32):
        behind = send(leaf, schedule(era, most))
        assert loads(leaf)[0] == (era, expected)
        assert (behind.lanes[0].load, behind.lanes[0].headroom) == (expected, 0)
    send(leaf, schedule(era, -(2**31)))
    assert loads(leaf)[0] == (era, MAX_U32 - 2**31)
    send(leaf, schedule(era, 0, MAX_U32, MAX_U32, 5))
    send(leaf, schedule(era, 0, MAX_U32, -MAX_U32, -MAX_U32))
    assert loads(leaf)[1:4] == [(era, MAX_U32), (era, 0), (era, 0)]


def test_an_absurd_epoch_does_not_block_the_lane(leaf: Target) -> None:
    """Only the epoch right behind it counts as late; any other restarts the lane."""
    era = new_era()
    for absurd in (EPOCHS - 1, era + EPOCHS // 2, era + 2, 0):
        send(leaf, schedule(absurd, 2**31 - 1))
        assert send(leaf, schedule(era, 100)).lanes[0].load == 100
        assert loads(leaf)[0] == (era, 100)
    send(leaf, schedule(era + 1, 5))
    assert send(leaf, schedule(era, 100)).lanes[0].load == 0
    assert send(leaf, schedule(era + 1, 5)).lanes[0].load == 10


def test_epochs_wrap(leaf: Target) -> None:
    send(leaf, schedule(EPOCHS - 1, 100))
    send(leaf, schedule(0, 7))
    send(leaf, schedule(EPOCHS - 1, 100))
    assert loads(leaf)[0] == (0, 7)


def test_epochs_wrap_within_a_header(leaf: Target) -> None:
    send(leaf, schedule(EPOCHS // 2))  # restarts what another test left in epoch 0
    send(leaf, announcement(EPOCHS * LANES - 1, [3, 4]))
    assert [loads(leaf)[lane] for lane in (LANES - 1, 0)] == [(EPOCHS - 1, 3), (0, 4)]


def test_path_load_adds_up_and_headroom_is_the_least(leaf: Target) -> None:
    """Over two links, as two switches would: from port 1 to uplink 4, and from there to 5."""
    era = new_era()
    send(leaf, schedule(era, 0, 3500), dst="10.1.0.1", port=1)
    send(leaf, schedule(era, 0, 0, 4990), dst="10.1.0.1", port=4)
    header = schedule(era, 10, 20, 30)
    for ingress in (1, 4):
        header = send(leaf, header, dst="10.1.0.1", port=ingress)
    assert header.hops == 2
    assert [lane.load for lane in header.lanes[:4]] == [20, 3540, 5050, 0]
    assert [lane.headroom for lane in header.lanes[:4]] == [3990, 480, 0, 4000]


def test_gathered_values_saturate(leaf: Target) -> None:
    era = new_era()
    header = schedule(era, 100)
    lanes = (header.lanes[0]._replace(load=MAX_U32 - 50, headroom=3), *header.lanes[1:])
    behind = send(leaf, replace(header, lanes=lanes))
    assert (behind.lanes[0].load, behind.lanes[0].headroom) == (MAX_U32, 3)


def test_hops_saturate(leaf: Target) -> None:
    era = new_era()
    assert [send(leaf, replace(schedule(era), hops=hops)).hops for hops in (0, 254, 255)] == [1, 255, 255]


def test_everything_else_in_the_header_stays(leaf: Target) -> None:
    header = replace(
        schedule(new_era(), 1, -1), base_slot=123456, flow=99, bytes_received=2**47, bytes_onward=5
    )
    behind = send(leaf, header)
    assert replace(behind, lanes=header.lanes, hops=0) == header
    assert [lane.delta for lane in behind.lanes] == [lane.delta for lane in header.lanes]


def test_feedback_changes_nothing(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100))
    header = replace(schedule(era + 5, 50, 60), kind=Kind.FEEDBACK, bytes_received=10**12, bytes_onward=10**9)
    assert send(leaf, header) == header
    assert loads(leaf)[:2] == [(era, 100), (era, 0)]


def test_query_reads_and_changes_nothing(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100, 200))
    assert [lane.load for lane in query(leaf, 2, epochs=True).lanes] == [era] * LANES
    first = query(leaf, 2)
    assert [(lane.load, lane.headroom) for lane in first.lanes[:3]] == [
        (100, CAPACITY[2] - 100),
        (200, CAPACITY[2] - 200),
        (0, CAPACITY[2]),
    ]
    assert replace(query(leaf, 2), bytes_received=first.bytes_received) == first  # it tells the time


def test_packets_without_slot_header_change_nothing(leaf: Target) -> None:
    era = new_era()
    send(leaf, schedule(era, 100))
    before = loads(leaf)
    plain = carrier(schedule(era, 1), host_ip(2))
    leaf.send(1, plain[:12] + plain[16:18] + plain[14 + len(schedule(era).pack()) :])
    assert loads(leaf) == before


def test_a_link_without_entry_has_no_capacity(leaf: Target) -> None:
    era = new_era()
    leaf.client.delete(link(2, CAPACITY[2]))
    try:
        behind = send(leaf, schedule(era, 5))
        assert (behind.lanes[0].load, behind.lanes[0].headroom) == (5, 0)
    finally:
        leaf.client.insert(link(2, CAPACITY[2]))


# --- random sequences ---

PATHS = {2: (1, host_ip(2)), 1: (2, host_ip(1)), 4: (1, "10.1.0.1")}
DELTAS = st.one_of(
    st.integers(-200, 200), st.sampled_from([-MAX_U32, MAX_U32, -1, 0]), st.integers(-MAX_U32, MAX_U32)
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(list(PATHS)),
        st.sampled_from([Kind.SCHEDULE, Kind.SCHEDULE, Kind.SCHEDULE, Kind.FEEDBACK]),
        st.integers(0, 4 * LANES),
        st.lists(DELTAS, min_size=LANES, max_size=LANES),
        st.integers(0, 255),
        st.sampled_from([0, 1, 2**31, MAX_U32]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_the_table_equals_the_model(
    leaf: Target, steps: list[tuple[int, Kind, int, list[int], int, int]]
) -> None:
    era = new_era()
    # Whatever the tables held before, after this they hold nothing of this era.
    models = {port: Link(CAPACITY[port]) for port in PATHS}
    for port, (ingress, dst) in PATHS.items():
        header = schedule(era)
        assert send(leaf, header, dst, ingress) == models[port].pass_(header)
    for port, kind, ahead, deltas, hops, gathered in steps:
        lanes = tuple(Lane(delta, gathered, MAX_U32 - gathered) for delta in deltas)
        header = replace(announcement((era - 1) * LANES + ahead, ()), kind=kind, hops=hops, lanes=lanes)
        ingress, dst = PATHS[port]
        assert send(leaf, header, dst, ingress) == models[port].pass_(header)
    for port, model in models.items():
        assert loads(leaf, port) == [(cell.epoch, cell.load) for cell in model.cells]


def test_many_carriers_in_one_burst(leaf: Target) -> None:
    """What a burst adds up to does not depend on how packets follow each other."""
    rng, era = random.Random(4), new_era()
    model = Link(CAPACITY[2])
    headers = []
    for _ in range(300):
        deltas = [rng.randrange(-100, 101) for _ in range(LANES)]
        headers.append(announcement(era * LANES + rng.randrange(4 * LANES), deltas))
    expected = [model.pass_(header) for header in headers]
    batch = leaf.send_batch([(1, carrier(header, host_ip(2))) for header in headers])
    assert [slot_header(outputs[0][1]) for outputs in batch.outputs] == expected
