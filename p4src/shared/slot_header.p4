// Generated from wire/slot_header.toml by `python -m wire`; edit that file.
#ifndef _SLOT_HEADER_P4_
#define _SLOT_HEADER_P4_

const bit<16> ETHERTYPE_SLOT = 0x88b5;
const bit<4> SLOT_VERSION = 2;
const bit<16> SLOT_LANES = 10;
const bit<4> SLOT_SCHEDULE = 1;
const bit<4> SLOT_FEEDBACK = 2;
const bit<4> SLOT_QUERY = 3;

header slot_t {
    bit<4> version;               // of this layout: a header with another one is refused
    bit<4> kind;                  // schedule, feedback or query
    bit<8> hops;                  // switches passed; saturates at 255
    bit<16> next_ethertype;       // the EtherType that follows this header
    bit<16> port;                 // query: the egress port whose table is read; otherwise 0
    bit<16> epoch;                // slot div lanes, of the first slot; wraps. Lanes below first_lane hold slots of the next epoch
    bit<16> lowers;               // the lanes' signs: bit n says that the amount of lane n is taken off; query: that the lane's epoch is read instead of its load
    bit<16> first_lane;           // lane of the first slot; slot s is in lane s mod lanes
}

header lane_t {
    bit<32> amount;               // schedule: by how much the flow's planned rate has changed since it last announced this slot; feedback: in the first lane, how late the carrier arrived
    bit<32> load;                 // gathered: sum of the links' loads in this slot after the change, saturating
    bit<32> headroom;             // gathered: minimum over the links of capacity minus load
}

header slot_tail_t {
    bit<32> base_slot;            // number of the first slot, which is the present one; lanes hold base_slot .. base_slot + lanes - 1
    bit<32> flow;                 // the sender's number of the flow; feedback returns it
    bit<48> bytes_received;       // feedback: bytes of the flow that the receiver has got (the progress of the dependency rules)
    bit<48> bytes_onward;         // feedback: bytes that the receiver has itself sent onward (ring and broadcast dependencies)
}

// M(n) once for each of the K = 10 lanes.
#define FOR_EACH_LANE(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9)

#endif
