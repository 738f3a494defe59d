"""Wireshark's dissector reads what the codec writes."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from wire.dissector import LUA
from wire.slot_header import ETHERTYPE, FIELDS, LANE_FIELDS, LANES, FieldSpec, Kind, Lane, SlotHeader


def some(rng: random.Random, specs: tuple[FieldSpec, ...]) -> dict[str, int]:
    """Values that fit the fields."""
    values = {}
    for spec in specs:
        low = -(1 << spec.bits - 1) if spec.signed else 0
        values[spec.name] = rng.randrange(low, low + (1 << spec.bits))
    return values


def test_tshark_shows_every_field_of_every_lane_and_what_follows(tmp_path: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark (apt-get install tshark)")
    rng = random.Random(7)
    kinds = [kind for kind in Kind for _ in range(4)]
    headers = []
    for kind in kinds:
        fields = {**some(rng, FIELDS), "kind": kind, "next_ethertype": 0x0800}
        fields["version"] = SlotHeader().version
        lanes = tuple(Lane(**some(rng, LANE_FIELDS)) for _ in range(LANES))
        headers.append(SlotHeader(**fields, lanes=lanes))
    after = bytes(IP(src="10.1.1.2", dst="10.2.1.2") / UDP(sport=1, dport=9))
    pcap = tmp_path / "carriers.pcap"
    wrpcap(str(pcap), [Ether(type=ETHERTYPE) / (header.pack() + after) for header in headers])
    names = [f"entrain.{spec.name}" for spec in FIELDS]
    names += [f"entrain.lane.{spec.name}" for spec in LANE_FIELDS]
    names += ["entrain.lane.slot", "ip.dst"]
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
        for spec in FIELDS:
            assert int(packet[f"entrain.{spec.name}"], 0) == getattr(header, spec.name), spec.name
        for spec in LANE_FIELDS:
            found = [int(value, 0) for value in packet[f"entrain.lane.{spec.name}"].split(",")]
            assert found == [getattr(lane, spec.name) for lane in header.lanes], spec.name
        if header.kind is not Kind.QUERY:
            slots = [int(slot) for slot in packet["entrain.lane.slot"].split(",")]
            assert [slot % LANES for slot in slots] == list(range(LANES))
            assert sorted(slots) == list(range(header.base_slot, header.base_slot + LANES))
