// What a host may do to others by carriers: send some, of present slots, that announce in each slot no more than its
// link carries, and take back no more than they have announced. A port without an entry is not limited.

// An answer to a carrier that was let through is not among those that a port may send; else whoever sends many carriers
// to a host uses up that host's own number. An answer that comes in a later window than its carrier is.
control Answers(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    register<bit<48>>(MAX_PORTS) owed;   // of each port: a window of 65,536 us, and how many carriers it has not answered
    bit<32> port = 0;
    bit<48> cell = 0;
    bit<48> begin = 0;

    @hidden action owe() {
        port = (bit<32>)standard_metadata.egress_spec;
        begin = standard_metadata.ingress_global_timestamp[31:16] ++ 32w0;
        owed.read(cell, port);
        cell = ((cell[47:32] == begin[47:32]) ? cell : begin) + 1;
        owed.write(port, cell);
    }

    @hidden action pay() {
        port = (bit<32>)standard_metadata.ingress_port;
        begin = standard_metadata.ingress_global_timestamp[31:16] ++ 32w0;
        owed.read(cell, port);
        cell = (cell[47:32] == begin[47:32]) ? cell : begin;
        meta.owed = cell[31:0] != 0;
        cell = begin + (bit<48>)(cell[31:0] |-| 1);
        owed.write(port, cell);
    }

    apply {
        if (hdr.slot.kind == SLOT_FEEDBACK) {
            pay();
        } else {
            owe();
        }
    }
}

const bit<64> SLOT_TURN_TENTH = 28147497671065;  // a slot in turns of the lanes << 48

// Per port and lane: the epoch ++ what the port has announced in that slot. `used` is what it has announced since the
// epoch of this carrier began: more than any limit where it has announced the next epoch, so that a port cannot begin
// anew by going back. Such a carrier is late and counts nothing, as in the load table; it is no excess.
#define GUARD_LANE(n)                                                                                    \
    register<bit<48>>(MAX_PORTS) announced##n;                                                           \
                                                                                                         \
    @hidden action slot##n() {                                                                           \
        begin = LANE_EPOCH(n) ++ 32w0;                                                                   \
    }                                                                                                    \
                                                                                                         \
    @hidden action limit_raise##n() {                                                                    \
        announced##n.read(cell, port);                                                                   \
        used = ((cell - begin)[47:33] == 0) ? cell - begin : 48w0;                                       \
        left = limit |-| used;                                                                           \
        excess = excess | ((used[32:32] == 0) ? (bit<48>)hdr.lane##n.amount |-| left : 48w0);            \
        left = LEAST((bit<48>)hdr.lane##n.amount, left);                                                 \
        cell = begin + used + left;                                                                      \
        announced##n.write(port, cell);                                                                  \
        hdr.lane##n.amount = left[31:0];                                                                 \
    }                                                                                                    \
                                                                                                         \
    @hidden action limit_lower##n() {                                                                    \
        announced##n.read(cell, port);                                                                   \
        used = ((cell - begin)[47:33] == 0) ? cell - begin : 48w0;                                       \
        left = (used[32:32] == 0) ? used : 48w0;                                                         \
        excess = excess | ((used[32:32] == 0) ? (bit<48>)hdr.lane##n.amount |-| left : 48w0);            \
        left = LEAST((bit<48>)hdr.lane##n.amount, left);                                                 \
        cell = begin + used - left;                                                                      \
        announced##n.write(port, cell);                                                                  \
        hdr.lane##n.amount = left[31:0];                                                                 \
    }

#define LIMIT_LANE(n)                                                                                    \
    slot##n();                                                                                           \
    if (hdr.slot.lowers[n:n] == 0) { limit_raise##n(); } else { limit_lower##n(); }

control Guard(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // By ingress port and reason, REFUSED_REASONS each.
    counter(MAX_PORTS * REFUSED_REASONS, CounterType.packets) refused;
    register<bit<48>>(MAX_PORTS) carriers;   // of each port: a window of 65,536 us, and how many came in it
    bit<48> limit = 0;
    bit<32> limit_carriers = 0;
    bit<48> excess = 0;
    bit<48> begin = 0;
    bit<32> port = 0;
    bit<48> cell = 0;
    bit<48> used = 0;
    bit<48> left = 0;
    bit<64> off = 0;    // from the first slot to the present, plus what is allowed: turns of the lanes << 48
    bit<64> span = 0;   // of what is allowed; 0: the switch does not know what the present slot is

    action set_limits(bit<32> load, bit<32> carriers) {
        limit = (bit<48>)load;
        limit_carriers = carriers;
    }

    table limits {
        key = { standard_metadata.ingress_port: exact @name("ingress_port"); }
        actions = { set_limits; @defaultonly NoAction; }
        const default_action = NoAction();
        size = LINK_TABLE_SIZE;
    }

    // The controller compares the switch's clock with its own from time to time, and says which turn of the lanes
    // began when; if it has not for so long that clocks may have drifted, nothing is refused.
    action set_clock(bit<48> since, bit<64> turn, bit<64> turns_per_us, bit<64> early, bit<64> allowed) {
        bit<48> passed = standard_metadata.ingress_global_timestamp - since;
        bit<64> first = (hdr.slot.epoch ++ 48w0) + (bit<64>)hdr.slot.first_lane * SLOT_TURN_TENTH;
        off = turn + (bit<64>)passed * turns_per_us - first + early;
        span = passed[47:28] == 0 ? allowed : 64w0;
    }

    table clock {
        key = {}
        actions = { set_clock; NoAction; }
        default_action = NoAction();
    }

    @hidden action refuse(bit<2> reason) {
        meta.refused = true;
        refused.count((bit<32>)(standard_metadata.ingress_port ++ reason));
    }

    @hidden action note_excess() {
        refused.count((bit<32>)(standard_metadata.ingress_port ++ REFUSED_LOAD));
    }

    @hidden action count_carrier() {
        carriers.read(cell, port);
        begin = standard_metadata.ingress_global_timestamp[31:16] ++ 32w0;
        used = (cell[47:32] == begin[47:32]) ? cell : begin;
        cell = used + 1;
        carriers.write(port, cell);
        excess = (bit<48>)(cell[31:0] |-| limit_carriers);
    }

    FOR_EACH_LANE(GUARD_LANE)

    apply {
        port = (bit<32>)standard_metadata.ingress_port;
        if (meta.host != 0 && meta.src != meta.host) {
            refuse(REFUSED_SOURCE);
        } else if (limits.apply().hit) {
            clock.apply();
            if (!meta.owed) {
                count_carrier();
            }
            if (excess != 0) {
                refuse(REFUSED_RATE);
            } else if (off >= span && span != 0) {
                refuse(REFUSED_SLOT);
            } else if (hdr.slot.kind == SLOT_SCHEDULE) {
                FOR_EACH_LANE(LIMIT_LANE)
                if (excess != 0) {
                    note_excess();
                }
            }
        }
    }
}
