"""One definition: the codec, the Scapy layer, the P4 header and the C struct agree to the bit."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from wire import scapy_layer
from wire.generate import P4_HEADER, outputs
from wire.slot_header import (
    ETHERTYPE,
    FIELDS,
    FIXED_BYTES,
    HEADER_BYTES,
    LANE_BYTES,
    LANE_FIELDS,
    LANES,
    MAX_U32,
    SLOTS,
    TAIL_FIELDS,
    VERSION,
    Kind,
    Lane,
    SlotHeader,
    announcement,
    epoch_of,
    lane_of,
    slot_near,
)

u32 = st.integers(0, 2**32 - 1)
lanes = st.builds(Lane, delta=st.integers(-MAX_U32, MAX_U32), load=u32, headroom=u32)
STORED = [spec for spec in (*FIELDS, *TAIL_FIELDS) if spec.name != "lowers"]  # it is the signs of the lanes
values = {spec.name: st.integers(0, 2**spec.bits - 1) for spec in STORED}
fixed = {
    "version": st.just(VERSION),
    "kind": st.sampled_from(Kind),
    "first_lane": st.integers(0, LANES - 1),
}
headers = st.builds(
    SlotHeader,
    **{**values, **fixed},
    lanes=st.lists(lanes, min_size=LANES, max_size=LANES).map(tuple),
)


@given(headers)
def test_packing_and_unpacking_gives_the_same_header(header: SlotHeader) -> None:
    data = header.pack()
    assert len(data) == HEADER_BYTES
    assert SlotHeader.unpack(data) == header


@given(headers)
def test_scapy_reads_what_the_codec_writes_and_gives_the_same_bytes(header: SlotHeader) -> None:
    packet = scapy_layer.SlotHeader(header.pack())
    for spec in STORED:
        assert getattr(packet, spec.name) == getattr(header, spec.name)
    for number, (ours, theirs) in enumerate(zip(header.lanes, packet.lanes, strict=True)):
        sign = -1 if packet.lowers >> number & 1 else 1
        assert (sign * theirs.amount, theirs.load, theirs.headroom) == ours
    assert bytes(scapy_layer.SlotHeader(bytes(packet))) == header.pack()


def test_scapy_finds_the_header_between_ethernet_and_ip() -> None:
    frame = Ether(
        bytes(12) + ETHERTYPE.to_bytes(2, "big") + SlotHeader(kind=Kind.SCHEDULE).pack() + bytes(IP())
    )
    assert frame[scapy_layer.SlotHeader].kind == Kind.SCHEDULE
    assert IP in frame


@pytest.mark.parametrize(
    ("path", "text"), list(outputs().items()), ids=lambda value: getattr(value, "name", "")
)
def test_generated_file_is_fresh(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `python -m wire`"


def test_the_codecs_classes_have_the_defined_fields_in_order_with_their_start_values() -> None:
    fixed = [(field.name, field.default) for field in fields(SlotHeader) if field.name != "lanes"]
    assert fixed == [(spec.name, spec.start) for spec in STORED]
    assert list(Lane._field_defaults.values()) == [spec.start for spec in LANE_FIELDS]


def test_p4_header_has_the_fields_in_the_defined_order_and_width() -> None:
    text = P4_HEADER.read_text()
    for name, specs in (("slot_t", FIELDS), ("lane_t", LANE_FIELDS), ("slot_tail_t", TAIL_FIELDS)):
        body = re.search(rf"header {name} {{(.*?)}}", text, re.DOTALL)
        assert body
        found = [(field, int(bits)) for bits, field in re.findall(r"bit<(\d+)> (\w+);", body[1])]
        assert found == [(spec.name, spec.bits) for spec in specs]


def test_what_a_switch_reads_on_the_way_out_fits_a_tofino_1() -> None:
    """160 bytes, of which Ethernet takes 14; port and queue depth, which come ahead of the packet, take 5."""
    assert 5 + 14 + FIXED_BYTES + LANES * LANE_BYTES <= 160


@given(base=st.integers(0, 2**32 - LANES), deltas=st.lists(st.integers(-1000, 1000), max_size=LANES))
def test_each_announced_slot_travels_in_its_lane_with_its_epoch(base: int, deltas: list[int]) -> None:
    announced = announcement(base, deltas)
    for offset in range(LANES):
        lane = lane_of(base + offset)
        assert announced.slot_in(lane) == base + offset
        assert announced.epoch_in(lane) == epoch_of(base + offset)
        assert announced.lanes[lane].delta == (deltas[offset] if offset < len(deltas) else 0)


@given(present=st.integers(0, 2**40), ahead=st.integers(-SLOTS // 2, SLOTS // 2 - 1))
def test_a_slot_is_found_by_its_lane_and_epoch(present: int, ahead: int) -> None:
    slot = present + ahead
    assert slot_near(present, epoch_of(slot) * LANES + lane_of(slot)) == slot


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (SlotHeader(kind=Kind.SCHEDULE, base_slot=2**32), "base_slot"),
        (SlotHeader(kind=Kind.SCHEDULE, lanes=()), "lanes"),
        (SlotHeader(kind=Kind.SCHEDULE, flow=-1), "flow"),
        (SlotHeader(lanes=(Lane(delta=2**32),) * LANES), "amount"),
    ],
)
def test_a_value_that_does_not_fit_is_named(header: SlotHeader, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        header.pack()


def test_a_header_of_another_version_or_cut_short_is_refused() -> None:
    data = SlotHeader(kind=Kind.QUERY).pack()
    for version in (VERSION - 1, VERSION + 1):
        with pytest.raises(ValueError, match=f"version {version}, expected {VERSION}"):
            SlotHeader.unpack(bytes([version << 4 | data[0] & 0xF]) + data[1:])
    with pytest.raises(ValueError, match=f"lane {LANES}, the last is {LANES - 1}"):
        SlotHeader.unpack(SlotHeader(first_lane=LANES).pack())
    with pytest.raises(ValueError, match="bytes"):
        SlotHeader.unpack(data[:-1])
