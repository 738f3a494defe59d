-- Generated from wire/slot_header.toml by `python -m wire`; edit that file.
-- Wireshark and tshark show slot headers with it: `wireshark -X lua_script:slot_header.lua`.

local kinds = {[1] = "schedule", [2] = "feedback", [3] = "query"}
local slot_header = Proto("entrain", "entrain slot header")
local fields, lane_fields = {}, {}

fields.version = ProtoField.uint8("entrain.version", "version", base.DEC, nil, 0xf0, "of this layout: a header with another one is refused")
fields.kind = ProtoField.uint8("entrain.kind", "kind", base.DEC, kinds, 0xf, "schedule, feedback or query")
fields.hops = ProtoField.uint8("entrain.hops", "hops", base.DEC, nil, nil, "switches passed; saturates at 255")
fields.next_ethertype = ProtoField.uint16("entrain.next_ethertype", "next_ethertype", base.HEX, nil, nil, "the EtherType that follows this header")
fields.port = ProtoField.uint16("entrain.port", "port", base.DEC, nil, nil, "query: the egress port whose table is read; otherwise 0")
fields.epoch = ProtoField.uint16("entrain.epoch", "epoch", base.DEC, nil, nil, "slot div lanes, of the first slot; wraps. Lanes below first_lane hold slots of the next epoch")
fields.lowers = ProtoField.uint16("entrain.lowers", "lowers", base.DEC, nil, nil, "the lanes' signs: bit n says that the amount of lane n is taken off; query: that the lane's epoch is read instead of its load")
fields.first_lane = ProtoField.uint16("entrain.first_lane", "first_lane", base.DEC, nil, nil, "lane of the first slot; slot s is in lane s mod lanes")
fields.base_slot = ProtoField.uint32("entrain.base_slot", "base_slot", base.DEC, nil, nil, "number of the first slot, which is the present one; lanes hold base_slot .. base_slot + lanes - 1")
fields.flow = ProtoField.uint32("entrain.flow", "flow", base.DEC, nil, nil, "the sender's number of the flow; feedback returns it")
fields.bytes_received = ProtoField.uint64("entrain.bytes_received", "bytes_received", base.DEC, nil, nil, "feedback: bytes of the flow that the receiver has got (the progress of the dependency rules)")
fields.bytes_onward = ProtoField.uint64("entrain.bytes_onward", "bytes_onward", base.DEC, nil, nil, "feedback: bytes that the receiver has itself sent onward (ring and broadcast dependencies)")

lane_fields.slot = ProtoField.uint64("entrain.lane.slot", "slot", base.DEC, nil, nil, "the slot in this lane")
lane_fields.delta = ProtoField.int64("entrain.lane.delta", "delta", base.DEC, nil, nil, "signed amount")
lane_fields.amount = ProtoField.uint32("entrain.lane.amount", "amount", base.DEC, nil, nil, "schedule: by how much the flow's planned rate has changed since it last announced this slot; feedback: in the first lane, how late the carrier arrived")
lane_fields.load = ProtoField.uint32("entrain.lane.load", "load", base.DEC, nil, nil, "gathered: sum of the links' loads in this slot after the change, saturating")
lane_fields.headroom = ProtoField.uint32("entrain.lane.headroom", "headroom", base.DEC, nil, nil, "gathered: minimum over the links of capacity minus load")

local all = {}
for _, field in pairs(fields) do table.insert(all, field) end
for _, field in pairs(lane_fields) do table.insert(all, field) end
slot_header.fields = all

local ethertypes = DissectorTable.get("ethertype")

function slot_header.dissector(buffer, packet, tree)
  if buffer:len() < 152 then return 0 end
  packet.cols.protocol = "ENTRAIN"
  local top = tree:add(slot_header, buffer(0, 152))
  top:add(fields.version, buffer(0, 1))
  top:add(fields.kind, buffer(0, 1))
  top:add(fields.hops, buffer(1, 1))
  top:add(fields.next_ethertype, buffer(2, 2))
  top:add(fields.port, buffer(4, 2))
  top:add(fields.epoch, buffer(6, 2))
  top:add(fields.lowers, buffer(8, 2))
  top:add(fields.first_lane, buffer(10, 2))
  top:add(fields.base_slot, buffer(132, 4))
  top:add(fields.flow, buffer(136, 4))
  top:add(fields.bytes_received, buffer(140, 6))
  top:add(fields.bytes_onward, buffer(146, 6))
  local kind, base_slot, lowers = buffer(0, 1):bitfield(4, 4), buffer(132, 4):uint(), buffer(8, 2):uint()
  top:append_text(", " .. (kinds[kind] or "unknown kind") .. ", slots from " .. base_slot)
  for lane = 0, 9 do
    local at = 12 + lane * 12
    local shown = top:add(slot_header, buffer(at, 12), "lane " .. lane)
    if kind ~= 3 then -- lanes hold the slots from base_slot on, slot s in lane s mod 10
      local slot = base_slot + (lane - base_slot) % 10
      shown:add(lane_fields.slot, buffer(at, 12), UInt64.new(slot)):set_generated()
      shown:append_text(", slot " .. slot)
      local amount = buffer(at + 0, 4):uint()
      local sign = math.floor(lowers / 2 ^ lane) % 2 == 1 and -1 or 1
      shown:add(lane_fields.delta, buffer(at, 12), Int64.new(sign * amount)):set_generated()
    end
    shown:add(lane_fields.amount, buffer(at, 4))
    shown:add(lane_fields.load, buffer(at + 4, 4))
    shown:add(lane_fields.headroom, buffer(at + 8, 4))
  end
  local following = ethertypes:get_dissector(buffer(2, 2):uint())
  local rest = buffer(152):tvb()
  if following and rest:len() > 0 then
    following:call(rest, packet, tree)
    packet.cols.info:prepend("[" .. (kinds[kind] or "?") .. "] ")
  else
    packet.cols.info = (kinds[kind] or "unknown kind") .. ", slots from " .. base_slot
  end
  return buffer:len()
end

ethertypes:add(0x88b5, slot_header)
