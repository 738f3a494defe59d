// Generated from wire/slot_header.toml by `python -m wire`; edit that file.
#ifndef _SLOT_HEADER_P4_
#define _SLOT_HEADER_P4_

const bit<16> ETHERTYPE_SLOT = 0x88b5;
const bit<4> SLOT_VERSION = 1;
const bit<32> SLOT_LATE_EPOCHS = 2;
const bit<4> SLOT_SCHEDULE = 1;
const bit<4> SLOT_FEEDBACK = 2;
const bit<4> SLOT_QUERY = 3;

header slot_t {
    bit<4> version;               // of this layout: a header with another one is refused
    bit<4> kind;                  // schedule, feedback or query
    bit<8> hops;                  // switches passed; saturates at 255
    bit<16> next_ethertype;       // the EtherType that follows this header
    bit<32> base_slot;            // number of the present slot; lanes hold slots base_slot .. base_slot + lanes - 1, slot s in lane s mod lanes
    bit<16> port;                 // query: the egress port whose table is read; otherwise 0
    bit<32> flow;                 // the sender's number of the flow; feedback returns it
    bit<48> bytes_received;       // feedback: bytes of the flow that the receiver has got (the progress of the dependency rules)
    bit<48> bytes_onward;         // feedback: bytes that the receiver has itself sent onward (ring and broadcast dependencies)
}

header lane_t {
    bit<32> epoch;                // slot div lanes, of the slot that this lane announces; query: that of the stored slot
    bit<32> delta;                // schedule: change of the flow's planned rate since it last announced this slot; feedback: in the lane of base_slot, how late the carrier arrived
    bit<32> load;                 // gathered: sum of the links' loads in this slot after the change, saturating
    bit<32> headroom;             // gathered: minimum over the links of capacity minus load
}

// M(n) once for each of the K = 10 lanes.
#define FOR_EACH_LANE(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9)

#endif
