"""Wireshark's dissector reads what the codec writes."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from wire.dissector import LUA
from wire.slot_header import (
    ETHERTYPE,
    FIELDS,
    LANE_FIELDS,
    LANES,
    TAIL_FIELDS,
    VERSION,
    FieldSpec,
    Kind,
    Lane,
    SlotHeader,
)


def some(rng: random.Random, specs: Iterable[FieldSpec]) -> dict[str, int]:
    """Values that fit the fields."""
    return {spec.name: rng.randrange(1 << spec.bits) for spec in specs}


def some_header(rng: random.Random, kind: Kind) -> SlotHeader:
    fields = {**some(rng, FIELDS), **some(rng, TAIL_FIELDS)}
    del fields["lowers"]
    fields |= {"version": VERSION, "kind": kind, "next_ethertype": 0x0800, "first_lane": rng.randrange(LANES)}
    lanes = [some(rng, LANE_FIELDS) for _ in range(LANES)]
    signed = [Lane(rng.choice((-1, 1)) * each["amount"], each["load"], each["headroom"]) for each in lanes]
    return SlotHeader(**{**fields, "kind": kind}, lanes=tuple(signed))


def test_tshark_shows_every_field_of_every_lane_and_what_follows(tmp_path: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark (apt-get install tshark)")
    rng = random.Random(7)
    headers = [some_header(rng, kind) for kind in Kind for _ in range(4)]
    after = bytes(IP(src="10.1.1.2", dst="10.2.1.2") / UDP(sport=1, dport=9))
    pcap = tmp_path / "carriers.pcap"
    wrpcap(str(pcap), [Ether(type=ETHERTYPE) / (header.pack() + after) for header in headers])
    told = [spec.name for spec in (*FIELDS, *TAIL_FIELDS) if spec.name != "lowers"]
    names = [f"entrain.{name}" for name in told]
    names += [f"entrain.lane.{name}" for name in ("slot", "delta", *(spec.name for spec in LANE_FIELDS))]
    names.append("ip.dst")
    shown = subprocess.run(
        ["tshark", "-X", f"lua_script:{LUA}", "-r", str(pcap), "-T", "fields"]
        + [option for name in names for option in ("-e", name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    packets = [
        dict(zip(names, line.split("\t"), strict=True)) for line in shown.stdout.rstrip("\n").split("\n")
    ]
    assert len(packets) == len(headers)
    for packet, header in zip(packets, headers, strict=True):
        assert packet["ip.dst"] == "10.2.1.2", "what follows the header is dissected, too"
        for name in told:
            assert int(packet[f"entrain.{name}"], 0) == getattr(header, name), name

        def lanes(name: str, packet: dict[str, str] = packet) -> list[int]:
            return [int(value, 0) for value in packet[f"entrain.lane.{name}"].split(",")]

        assert lanes("amount") == [abs(lane.delta) for lane in header.lanes]
        assert lanes("load") == [lane.load for lane in header.lanes]
        assert lanes("headroom") == [lane.headroom for lane in header.lanes]
        if header.kind is not Kind.QUERY:
            assert lanes("delta") == [lane.delta for lane in header.lanes]
            assert lanes("slot") == [header.slot_in(lane) for lane in range(LANES)]
