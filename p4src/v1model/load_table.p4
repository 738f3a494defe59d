// The link load table: K lanes; lane j holds, per egress port, the load planned in the one slot of the window
// with slot mod K == j, together with that slot's epoch (slot div K). A cell is epoch ++ load, so that one
// register access per lane and packet is enough. A cell restarts when another epoch comes, unless it is one of those
// that have just passed: a late carrier changes nothing. So entries age by themselves, and an absurd epoch blocks
// nothing for long.
//
// raise, lower and read are what a Tofino twin has as three RegisterActions on the same register.

#define LANE(n)                                                                                          \
    register<bit<64>>(MAX_PORTS) lane##n;                                                                \
                                                                                                         \
    @hidden action raise##n() {                                                                          \
        bit<64> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<32> behind = cell[63:32] - hdr.lane##n.epoch;                                                \
        bool late = behind - 1 < SLOT_LATE_EPOCHS;                                                       \
        bit<32> load = (behind == 0) ? cell[31:0] : 32w0;                                                \
        load = load |+| hdr.lane##n.delta;                                                               \
        lane##n.write((bit<32>)meta.link, late ? cell : (hdr.lane##n.epoch ++ load));                    \
        planned = late ? 32w0 : load;                                                                    \
    }                                                                                                    \
                                                                                                         \
    @hidden action lower##n() {                                                                          \
        bit<64> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<32> behind = cell[63:32] - hdr.lane##n.epoch;                                                \
        bool late = behind - 1 < SLOT_LATE_EPOCHS;                                                       \
        bit<32> load = (behind == 0) ? cell[31:0] : 32w0;                                                \
        load = load |-| (32w0 - hdr.lane##n.delta);                                                      \
        lane##n.write((bit<32>)meta.link, late ? cell : (hdr.lane##n.epoch ++ load));                    \
        planned = late ? 32w0 : load;                                                                    \
    }                                                                                                    \
                                                                                                         \
    @hidden action read##n() {                                                                           \
        bit<64> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        hdr.lane##n.epoch = cell[63:32];                                                                 \
        planned = cell[31:0];                                                                            \
    }                                                                                                    \
                                                                                                         \
    @hidden action gather##n() {                                                                         \
        hdr.lane##n.load = hdr.lane##n.load |+| planned;                                                 \
        bit<32> headroom = meta.capacity |-| planned;                                                    \
        hdr.lane##n.headroom = (headroom < hdr.lane##n.headroom) ? headroom : hdr.lane##n.headroom;      \
    }

#define APPLY_LANE(n)                                                                                    \
    if (hdr.slot.kind == SLOT_QUERY) { read##n(); }                                                      \
    else if (hdr.lane##n.delta[31:31] == 0) { raise##n(); }                                              \
    else { lower##n(); }                                                                                 \
    gather##n();

control LoadTable(inout headers_t hdr, inout metadata_t meta) {
    bit<32> planned = 0;   // on this link in the lane's slot

    FOR_EACH_LANE(LANE)

    apply {
        FOR_EACH_LANE(APPLY_LANE)
    }
}
