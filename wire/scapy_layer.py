"""The slot header as a Scapy layer, built from the one definition in `slot_header.toml`."""

from __future__ import annotations

from typing import Any

from scapy.fields import BitField, PacketListField, XShortField
from scapy.layers.inet import IP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, bind_layers

from wire.slot_header import ETHERTYPE, FIELDS, LANE_FIELDS, LANES, TAIL_FIELDS, FieldSpec


def _field(spec: FieldSpec) -> Any:
    if spec.name == "next_ethertype":
        return XShortField(spec.name, spec.start)
    return BitField(spec.name, spec.start, spec.bits)


class SlotLane(Packet):  # type: ignore[misc]
    """One lane: amount, load, headroom."""

    name = "SlotLane"
    fields_desc = [_field(spec) for spec in LANE_FIELDS]  # noqa: RUF012

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return no payload, because the next lane follows."""
        return b"", s


class SlotHeader(Packet):  # type: ignore[misc]
    """The slot header with its K lanes, between Ethernet and the protocol that `next_ethertype` names."""

    name = "SlotHeader"
    fields_desc = [  # noqa: RUF012
        *(_field(spec) for spec in FIELDS),
        PacketListField("lanes", [SlotLane() for _ in range(LANES)], SlotLane, count_from=lambda _: LANES),
        *(_field(spec) for spec in TAIL_FIELDS),
    ]


bind_layers(Ether, SlotHeader, type=ETHERTYPE)
bind_layers(SlotHeader, IP, next_ethertype=0x0800)
bind_layers(SlotHeader, ARP, next_ethertype=0x0806)
