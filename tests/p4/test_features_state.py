"""Registers, counters and meters: what packets leave in the switch."""

from __future__ import annotations

import random

import pytest
from finsy import (
    P4CounterData,
    P4CounterEntry,
    P4DirectCounterEntry,
    P4DirectMeterEntry,
    P4MeterConfig,
    P4MeterEntry,
    P4RegisterEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, unbits
from tests.p4.targets import Target

NOTHING, ADD, SET = 0, 1, 2
WIDE, MIDDLE, ODD, ONE, PAIR = range(5)


def command(register: int, op: int, index: int, value: int = 0) -> bytes:
    return ether(0x9C00 + register, bits([(op, 8), (index, 8), (value, 128), (0, 128)]))


def before(target: Target, register: int, op: int, index: int, value: int = 0) -> int:
    """Let a packet work on a register; what it held before."""
    ((_, output),) = target.send(1, command(register, op, index, value))
    return unbits(output[14:], (8, 8, 128, 128))[3]


# --- registers ---


@pytest.mark.parametrize(("register", "width"), [(WIDE, 128), (ODD, 9), (MIDDLE, 64)])
def test_registers_hold_what_packets_write(start: Start, register: int, width: int) -> None:
    rng, target, model = random.Random(width), start("state"), [0] * 16
    full = (1 << width) - 1
    for index in range(16):
        before(target, register, SET, index, 0)
    for _ in range(60):
        index, value = rng.randrange(256), rng.getrandbits(128)
        op = rng.choice([NOTHING, ADD, SET])
        assert before(target, register, op, index, value) == model[index & 15]
        if op == ADD:
            total = model[index & 15] + (value & full)
            model[index & 15] = min(total, full) if register == MIDDLE else total & full
        elif op == SET:
            model[index & 15] = value & full


def test_one_bit_register(start: Start) -> None:
    target = start("state")
    assert [before(target, ONE, NOTHING, 3) for _ in range(4)] == [0, 1, 0, 1]
    assert before(target, ONE, NOTHING, 4) == 0


def test_index_from_another_register(start: Start) -> None:
    target = start("state")
    before(target, MIDDLE, SET, 0, 5)
    for index in range(16):
        before(target, ODD, SET, index, 10 * index)
    assert before(target, PAIR, NOTHING, 0) == 50
    assert before(target, PAIR, NOTHING, 0) == 60
    assert [before(target, ODD, NOTHING, index) for index in (5, 6, 7)] == [53, 63, 70]
    assert before(target, MIDDLE, NOTHING, 0) == 7


def test_a_sequence_of_packets_sees_every_update(start: Start) -> None:
    target = start("state")
    before(target, WIDE, SET, 9, 0)
    batch = target.send_batch([(1, command(WIDE, ADD, 9, 3))] * 200)
    seen = [unbits(outputs[0][1][14:], (8, 8, 128, 128))[3] for outputs in batch.outputs]
    assert seen == list(range(0, 600, 3))


def test_registers_over_p4runtime(start: Start, kind: str) -> None:
    if kind == "bmv2":
        pytest.skip("BMv2 does not implement registers over P4Runtime")
    target = start("state")
    client = target.client
    client.modify(P4RegisterEntry("middle", index=4, data=123456789))
    assert before(target, MIDDLE, ADD, 4, 1) == 123456789
    (found,) = client.read(P4RegisterEntry("middle", index=4))
    assert found.data == 123456790
    assert len(client.read(P4RegisterEntry("middle"))) == 16
    client.modify(P4RegisterEntry("wide", index=1, data=1 << 127 | 5))
    assert before(target, WIDE, NOTHING, 1) == 1 << 127 | 5


# --- counters ---


def counter(target: Target, name: str, index: int) -> tuple[int, int]:
    (found,) = target.client.read(P4CounterEntry(name, index=index))
    assert found.data is not None
    return found.data.packet_count, found.data.byte_count


def test_counters_count_packets_and_bytes(start: Start) -> None:
    target = start("state")
    for name in ("packets", "bytes", "both"):
        target.client.modify(P4CounterEntry(name, index=200, data=P4CounterData()))
    packet = command(ONE, NOTHING, 200)
    target.send_batch([(1, packet), (2, packet + bytes(100)), (3, packet + bytes(1000))])
    size = 3 * len(packet) + 1100
    assert counter(target, "packets", 200)[0] == 3
    assert counter(target, "bytes", 200)[1] == size
    assert counter(target, "both", 200) == (3, size)
    assert counter(target, "both", 201) == (0, 0)


def test_counters_can_be_set(start: Start) -> None:
    target = start("state")
    target.client.modify(
        P4CounterEntry("both", index=7, data=P4CounterData(byte_count=1000, packet_count=10))
    )
    packet = command(ONE, NOTHING, 7)
    target.send(1, packet)
    assert counter(target, "both", 7) == (11, 1000 + len(packet))


def direct(target: Target, entry: P4TableEntry) -> tuple[int, int]:
    (found,) = target.client.read(P4DirectCounterEntry("direct", table_entry=entry))
    assert found.data is not None
    return found.data.packet_count, found.data.byte_count


def test_direct_counters_count_per_entry(start: Start) -> None:
    target = start("state")
    entries = [
        P4TableEntry(
            "counted",
            match=P4TableMatch({"hdr.command.index": index}),
            action=P4TableAction("mark", value=index),
        )
        for index in (1, 2)
    ]
    packet = command(WIDE, NOTHING, 1)
    with target.installed(*entries):
        target.send_batch([(1, packet)] * 5)
        ((_, output),) = target.send(1, command(WIDE, NOTHING, 2))
        assert output[14] == 2
        assert direct(target, entries[0]) == (5, 5 * len(packet))
        assert direct(target, entries[1]) == (1, len(packet))
    with target.installed(entries[0]):
        assert direct(target, entries[0]) == (0, 0)


# --- meters: at a rate of 0 the burst is all that passes ---


def colours(target: Target, index: int, count: int, size: int = 100) -> list[tuple[int, int, int]]:
    """Colours (by packets, by bytes, direct) of `count` packets of `size` bytes."""
    packet = ether(0x9D00, bytes([index, 0, 0, 0]))
    packet += bytes(size - len(packet))
    batch = target.send_batch([(1, packet)] * count)
    return [tuple(outputs[0][1][15:18]) for outputs in batch.outputs]  # type: ignore[misc]


def test_without_configuration_all_is_green(start: Start) -> None:
    assert colours(start("meter"), 1, 5) == [(0, 0, 3)] * 5


def config(committed: int, peak: int) -> P4MeterConfig:
    return P4MeterConfig(cir=0, cburst=committed, pir=0, pburst=peak)


def test_a_burst_of_packets_is_green_then_yellow_then_red(start: Start) -> None:
    target = start("meter")
    target.client.modify(P4MeterEntry("packets", index=2, config=config(3, 5)))
    assert [colour for colour, _, _ in colours(target, 2, 8)] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [colour for colour, _, _ in colours(target, 3, 8)] == [0] * 8


def test_a_burst_of_bytes(start: Start) -> None:
    target = start("meter")
    target.client.modify(P4MeterEntry("bytes", index=2, config=config(250, 450)))
    assert [colour for _, colour, _ in colours(target, 2, 6)] == [0, 0, 1, 1, 2, 2]


def test_a_meter_configured_again_starts_full(start: Start) -> None:
    target = start("meter")
    for _ in range(2):
        target.client.modify(P4MeterEntry("packets", index=4, config=config(2, 2)))
        assert [colour for colour, _, _ in colours(target, 4, 3)] == [0, 0, 2]


def test_direct_meter_of_an_entry(start: Start) -> None:
    target = start("meter")
    entry = P4TableEntry(
        "metered_table",
        match=P4TableMatch({"hdr.colours.index": 9}),
        action=P4TableAction("metered", mark=9),
    )
    with target.installed(entry):
        target.client.modify(P4DirectMeterEntry(table_entry=entry, config=config(2, 3)))
        assert [colour for _, _, colour in colours(target, 9, 5)] == [0, 0, 1, 2, 2]
        assert colours(target, 10, 1)[0][2] == 3
