"""Generates Wireshark's dissector of the slot header (Lua) from its definition."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from wire.slot_header import (
    ETHERTYPE,
    FIELDS,
    FIXED_BYTES,
    HEADER_BYTES,
    LANE_BYTES,
    LANE_FIELDS,
    LANES,
    TAIL_BYTES,
    TAIL_FIELDS,
    FieldSpec,
    Kind,
)

LUA = Path(__file__).with_name("slot_header.lua")


def dissector(notice: str) -> str:
    """Return the script. Fields are called `entrain.NAME`, those of lanes `entrain.lane.NAME`."""
    kinds = ", ".join(f"[{kind.value}] = {json.dumps(kind.name.lower())}" for kind in Kind)
    return f"""-- {notice}
-- Wireshark and tshark show slot headers with it: `wireshark -X lua_script:slot_header.lua`.

local kinds = {{{kinds}}}
local slot_header = Proto("entrain", "entrain slot header")
local fields, lane_fields = {{}}, {{}}

{_declared("fields", "entrain", FIELDS)}
{_declared("fields", "entrain", TAIL_FIELDS)}

lane_fields.slot = ProtoField.uint64("entrain.lane.slot", "slot", base.DEC, nil, nil, "the slot in this lane")
lane_fields.delta = ProtoField.int64("entrain.lane.delta", "delta", base.DEC, nil, nil, "signed amount")
{_declared("lane_fields", "entrain.lane", LANE_FIELDS)}

local all = {{}}
for _, field in pairs(fields) do table.insert(all, field) end
for _, field in pairs(lane_fields) do table.insert(all, field) end
slot_header.fields = all

local ethertypes = DissectorTable.get("ethertype")

function slot_header.dissector(buffer, packet, tree)
  if buffer:len() < {HEADER_BYTES} then return 0 end
  packet.cols.protocol = "ENTRAIN"
  local top = tree:add(slot_header, buffer(0, {HEADER_BYTES}))
{_added("top", "fields", FIELDS, "0")}
{_added("top", "fields", TAIL_FIELDS, str(HEADER_BYTES - TAIL_BYTES))}
  local kind, base_slot, lowers = {_value("kind")}, {_value("base_slot")}, {_value("lowers")}
  top:append_text(", " .. (kinds[kind] or "unknown kind") .. ", slots from " .. base_slot)
  for lane = 0, {LANES - 1} do
    local at = {FIXED_BYTES} + lane * {LANE_BYTES}
    local shown = top:add(slot_header, buffer(at, {LANE_BYTES}), "lane " .. lane)
    if kind ~= {Kind.QUERY.value} then -- lanes hold the slots from base_slot on, slot s in lane s mod {LANES}
      local slot = base_slot + (lane - base_slot) % {LANES}
      shown:add(lane_fields.slot, buffer(at, {LANE_BYTES}), UInt64.new(slot)):set_generated()
      shown:append_text(", slot " .. slot)
      local amount = buffer({_amount()}):uint()
      local sign = math.floor(lowers / 2 ^ lane) % 2 == 1 and -1 or 1
      shown:add(lane_fields.delta, buffer(at, {LANE_BYTES}), Int64.new(sign * amount)):set_generated()
    end
{_added("shown", "lane_fields", LANE_FIELDS, "at", indent="    ")}
  end
  local following = ethertypes:get_dissector({_value("next_ethertype")})
  local rest = buffer({HEADER_BYTES}):tvb()
  if following and rest:len() > 0 then
    following:call(rest, packet, tree)
    packet.cols.info:prepend("[" .. (kinds[kind] or "?") .. "] ")
  else
    packet.cols.info = (kinds[kind] or "unknown kind") .. ", slots from " .. base_slot
  end
  return buffer:len()
end

ethertypes:add({ETHERTYPE:#06x}, slot_header)
"""


def _places(specs: Sequence[FieldSpec], start: int = 0) -> Iterator[tuple[FieldSpec, int, int, int]]:
    """Yield each field with its first byte, how many it is in, and its mask in these."""
    bit = 0
    for spec in specs:
        first, last = bit // 8, (bit + spec.bits - 1) // 8
        width = last - first + 1
        below = 8 * (last + 1) - bit - spec.bits
        yield spec, start + first, width, ((1 << spec.bits) - 1) << below
        bit += spec.bits


def _declared(table: str, prefix: str, specs: Sequence[FieldSpec]) -> str:
    lines = []
    for spec, _, width, mask in _places(specs):
        size = next(bits for bits in (8, 16, 32, 64) if bits >= 8 * width)
        shown = "base.HEX" if spec.name.endswith("ethertype") else "base.DEC"
        values = "kinds" if spec.name == "kind" else "nil"
        covering = "nil" if spec.bits == 8 * width else f"{mask:#x}"
        lines.append(
            f'{table}.{spec.name} = ProtoField.uint{size}("{prefix}.{spec.name}", "{spec.name}", '
            f"{shown}, {values}, {covering}, {json.dumps(spec.doc, ensure_ascii=False)})"
        )
    return "\n".join(lines)


def _added(node: str, table: str, specs: Sequence[FieldSpec], at: str, indent: str = "  ") -> str:
    def where(first: int) -> str:
        return str(int(at) + first) if at.isdigit() else f"{at} + {first}" if first else at

    return "\n".join(
        f"{indent}{node}:add({table}.{spec.name}, buffer({where(first)}, {width}))"
        for spec, first, width, _ in _places(specs)
    )


def _value(name: str) -> str:
    """Return Lua that reads a field of at most 32 bits, before or behind the lanes."""
    places = [*_places(FIELDS), *_places(TAIL_FIELDS, HEADER_BYTES - TAIL_BYTES)]
    spec, first, width, mask = next(place for place in places if place[0].name == name)
    if spec.bits == 8 * width:
        return f"buffer({first}, {width}):uint()"
    offset = 8 * width - mask.bit_length()
    return f"buffer({first}, {width}):bitfield({offset}, {spec.bits})"


def _amount() -> str:
    """Return where in the buffer the amount of the lane from byte `at` on is."""
    return next(f"at + {at}, {width}" for spec, at, width, _ in _places(LANE_FIELDS) if spec.name == "amount")
