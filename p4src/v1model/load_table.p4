// The link load table: K lanes; lane j holds, per egress port, the load planned in the one slot of the window
// with slot mod K == j, together with that slot's epoch (slot div K). A cell is epoch ++ load, so that one
// register access per lane and packet is enough. A cell restarts when a newer epoch comes, and a late carrier
// changes nothing; entries age by themselves.
//
// raise, lower and read are what a Tofino twin has as three RegisterActions on the same register.

#define LANE(n)                                                                                          \
    register<bit<64>>(MAX_PORTS) lane##n;                                                                \
                                                                                                         \
    @hidden action raise##n() {                                                                          \
        bit<64> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<32> load = (cell[63:32] < hdr.lane##n.epoch) ? 32w0 : cell[31:0];                            \
        load = (cell[63:32] > hdr.lane##n.epoch) ? load : load |+| hdr.lane##n.delta;                    \
        bit<32> epoch = (cell[63:32] < hdr.lane##n.epoch) ? hdr.lane##n.epoch : cell[63:32];             \
        lane##n.write((bit<32>)meta.link, epoch ++ load);                                                \
        planned = (cell[63:32] > hdr.lane##n.epoch) ? 32w0 : load;                                       \
    }                                                                                                    \
                                                                                                         \
    @hidden action lower##n() {                                                                          \
        bit<64> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<32> load = (cell[63:32] < hdr.lane##n.epoch) ? 32w0 : cell[31:0];                            \
        load = (cell[63:32] > hdr.lane##n.epoch) ? load : load |-| (32w0 - hdr.lane##n.delta);           \
        bit<32> epoch = (cell[63:32] < hdr.lane##n.epoch) ? hdr.lane##n.epoch : cell[63:32];             \
        lane##n.write((bit<32>)meta.link, epoch ++ load);                                                \
        planned = (cell[63:32] > hdr.lane##n.epoch) ? 32w0 : load;                                       \
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
