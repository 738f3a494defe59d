"""The parser: every branch, lookahead, stacks, varbit, and every error where it happens."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r, rpc_code

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether
from tests.p4.runtime import refusals
from tests.p4.targets import Target

NONE, TOO_SHORT, _, STACK, _, VERSION, LENGTH = range(7)
VLAN0, VLAN1, IPV4, OPTIONS, IPV6, PORTS, TLV, MARKER = (1 << bit for bit in range(8))
TAIL = b"tail of the packet"


def report(
    error: int = NONE, found: int = 0, *, labels: int = 0, path: int = 0, last_label: int = 0
) -> bytes:
    return bytes([error, found, labels, path]) + last_label.to_bytes(4, "big")


def ipv4(*, version: int = 4, ihl: int = 5, protocol: int = 17, offset: int = 0) -> bytes:
    fields = [
        (version, 4),
        (ihl, 4),
        (0, 8),
        (100, 16),
        (7, 16),
        (2, 3),
        (offset, 13),
        (64, 8),
        (protocol, 8),
    ]
    return bits([*fields, (0xBEEF, 16), (0x0A000001, 32), (0x0A000002, 32)])


def ipv6(*, src: int, following: int) -> bytes:
    return bits([(6, 4), (0, 28), (0, 16), (following, 8), (64, 8), (src, 128), (1, 128)])


def vlan(vid: int, ethertype: int) -> bytes:
    return bits([(5, 3), (0, 1), (vid, 12), (ethertype, 16)])


def label(value: int, *, bottom: int = 0) -> bytes:
    return bits([(value, 20), (3, 3), (bottom, 1), (64, 8)])


PORT_BYTES = bytes.fromhex("04d2 0050")
LL, GLOBAL, OTHER = 0xFE80 << 112, 0x2001 << 112, 0x3000 << 112
STACK3 = label(7) + label(8) + label(9, bottom=1)

ACCEPTED = {
    "unknown type": (0x1234, TAIL, report()),
    "nothing behind Ethernet": (0x1234, b"", report()),
    "IPv4 with ports": (0x0800, ipv4() + PORT_BYTES + TAIL, report(found=IPV4 | PORTS, path=1)),
    "IPv4, other protocol": (0x0800, ipv4(protocol=1) + TAIL, report(found=IPV4, path=1)),
    "IPv4 fragment": (0x0800, ipv4(protocol=6, offset=9) + TAIL, report(found=IPV4, path=1)),
    "IPv4 with options": (
        0x0800,
        ipv4(ihl=7) + b"8 octets" + PORT_BYTES + TAIL,
        report(found=IPV4 | OPTIONS | PORTS, path=1),
    ),
    "IPv4 with most options": (
        0x0800,
        ipv4(ihl=15, protocol=1) + bytes(range(40)) + TAIL,
        report(found=IPV4 | OPTIONS, path=1),
    ),
    "IPv6 link-local UDP": (
        0x86DD,
        ipv6(src=LL, following=17) + PORT_BYTES,
        report(found=IPV6 | PORTS, path=2),
    ),
    "IPv6 link-local TCP": (0x86DD, ipv6(src=LL, following=6) + PORT_BYTES, report(found=IPV6, path=2)),
    "IPv6 masked next header": (
        0x86DD,
        ipv6(src=GLOBAL, following=7) + PORT_BYTES,
        report(found=IPV6 | PORTS, path=2),
    ),
    "IPv6 other": (0x86DD, ipv6(src=OTHER, following=17) + PORT_BYTES, report(found=IPV6, path=2)),
    "one tag": (0x9100, vlan(50, 0x0800) + ipv4() + PORT_BYTES, report(found=VLAN0 | IPV4 | PORTS, path=1)),
    "tag outside of the range": (
        0x9100,
        vlan(101, 0x0800) + ipv4() + PORT_BYTES,
        report(found=VLAN0 | IPV4 | PORTS, path=10),
    ),
    "two tags": (0x9100, vlan(1, 0x9100) + vlan(2, 0x1234) + TAIL, report(found=VLAN0 | VLAN1)),
    "even tag before labels": (
        0x9100,
        vlan(2, 0x8847) + label(9, bottom=1) + TAIL,
        report(found=VLAN0, labels=1, last_label=9),
    ),
    "odd tag before labels": (0x9100, vlan(3, 0x8847) + TAIL, report(found=VLAN0)),
    "labels, then IPv4": (
        0x8847,
        STACK3 + ipv4(protocol=1) + TAIL,
        report(found=IPV4, labels=3, last_label=9, path=1),
    ),
    "labels, then IPv6": (
        0x8847,
        label(5, bottom=1) + ipv6(src=OTHER, following=1) + TAIL,
        report(found=IPV6, labels=1, last_label=5, path=2),
    ),
    "labels, then neither": (0x8847, label(5, bottom=1) + b"\x70", report(labels=1, last_label=5)),
    "range select, marker": (0x900F, b"mk" + TAIL, report(found=MARKER, path=3)),
    "range select, mask": (0x901A, b"mk" + TAIL, report(path=3)),
    # BMv2 accepts where P4 would say NoMatch, and where the program says reject.
    "range select, no branch": (0x9020, TAIL, report(path=3)),
    "range select, reject": (0x9080, TAIL, report(path=3)),
    "lookahead, no value": (0x9201, b"\x01\x11" + TAIL, report(path=5)),
    "lookahead, one value": (0x9201, b"\x00\x03abc" + TAIL, report(found=TLV, path=5)),
    "lookahead, two values": (0x9201, b"\x01\x00\x00\x10" + bytes(16) + TAIL, report(found=TLV, path=5)),
}

REFUSED = {
    "IPv4 cut": (0x0800, ipv4()[:19], report(TOO_SHORT, path=1)),
    "ports cut": (0x0800, ipv4() + b"abc", report(TOO_SHORT, found=IPV4, path=1)),
    "options cut": (0x0800, ipv4(ihl=6) + b"abc", report(TOO_SHORT, found=IPV4, path=1)),
    "wrong version": (0x0800, ipv4(version=5) + PORT_BYTES, report(VERSION, found=IPV4, path=1)),
    "short length": (0x0800, ipv4(ihl=4) + PORT_BYTES, report(LENGTH, found=IPV4, path=1)),
    "wrong version first": (0x0800, ipv4(version=6, ihl=4), report(VERSION, found=IPV4, path=1)),
    "tag cut": (0x9100, b"\x00", report(TOO_SHORT)),
    "three tags": (
        0x9100,
        vlan(1, 0x9100) + vlan(1, 0x9100) + vlan(1, 0x9100),
        report(STACK, found=VLAN0 | VLAN1),
    ),
    "four labels": (
        0x8847,
        label(1) + label(2) + label(3) + label(4, bottom=1),
        report(STACK, labels=3, last_label=3),
    ),
    "labels cut": (0x8847, label(1) + label(2)[:3], report(TOO_SHORT, labels=1, last_label=1)),
    "no byte to look at": (0x8847, label(1, bottom=1), report(TOO_SHORT, labels=1, last_label=1)),
    "third value": (
        0x9201,
        b"\x01\x00\x01\x00\x01\x00\x00\x00",
        report(STACK, found=TLV, path=5),
    ),
    "value cut": (0x9201, b"\x01\x05abc", report(TOO_SHORT, path=5)),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(start: Start, case: str) -> None:
    ethertype, payload, expected = ACCEPTED[case]
    packet = ether(ethertype, payload)
    assert start("parser").send(2, packet) == [(2, expected + packet)]


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_stops_the_parser_and_keeps_the_packet(start: Start, case: str) -> None:
    ethertype, payload, expected = REFUSED[case]
    packet = ether(ethertype, payload)
    assert start("parser").send(2, packet) == [(2, expected + packet)]


def test_tagged_frames_of_802_1q(start: Start) -> None:
    packet = ether(0x8100, vlan(50, 0x0800) + ipv4(protocol=1) + TAIL)
    assert start("parser").send(2, packet) == [(2, report(found=VLAN0 | IPV4, path=1) + packet)]


def test_advanced_bytes_are_gone(start: Start) -> None:
    outputs = start("parser").send(1, ether(0x9200, b"abcmk" + TAIL))
    assert outputs == [(1, report(found=MARKER, path=4) + ether(0x9200, b"mk" + TAIL))]


def test_value_set_is_empty_at_first(start: Start) -> None:
    packet = ether(0x9300, b"mk" + TAIL)
    assert start("parser").send(1, packet) == [(1, report() + packet)]


def trusted(target: Target, *ethertypes: int) -> p4r.Update:
    """The update that makes these the value set's members. (Its keys have no names in P4Info.)"""
    update = p4r.Update(type=p4r.Update.MODIFY)
    entry = update.entity.value_set_entry
    entry.value_set_id = target.client.schema.p4info.value_sets[0].preamble.id
    for ethertype in ethertypes:
        match = entry.members.add().match.add(field_id=1)
        match.exact.value = ethertype.to_bytes(2, "big")
    return update


def test_value_set_matches_its_members(start: Start, kind: str) -> None:
    target = start("parser")
    packet = ether(0x9301, b"mk" + TAIL)
    try:
        target.client.write(trusted(target, 0x9301))
    except grpc.RpcError as error:
        if kind == "bmv2" and refusals(error)[0].canonical_code == rpc_code.UNIMPLEMENTED:
            pytest.skip("P4Runtime on BMv2 does not implement value sets")
        raise
    try:
        assert target.send(1, packet) == [(1, report(found=MARKER) + packet)]
        assert target.send(1, ether(0x9300)) == [(1, report() + ether(0x9300))]
    finally:
        target.client.write(trusted(target))
    assert target.send(1, packet) == [(1, report() + packet)]
