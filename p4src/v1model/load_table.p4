// The link load table: K lanes; lane j holds, per egress port, the load planned in the one slot of the window
// with slot mod K == j, together with that slot's epoch (slot div K). A cell is epoch ++ load, so that one
// register access per lane and packet is enough. A cell restarts when another epoch comes, unless it is the one
// that has just passed: a late carrier changes nothing. So entries age by themselves, and an absurd epoch blocks
// nothing for long.
//
// raise, lower, read_load and read_epoch are what a Tofino twin has as the four RegisterActions of the same register:
// kind and sign choose one of them, each compares the epoch twice, and has one word to tell.

#define LANE(n)                                                                                          \
    register<bit<48>>(MAX_PORTS) lane##n;                                                                \
                                                                                                         \
    @hidden action raise##n() {                                                                          \
        bit<16> epoch = hdr.slot.epoch + (n < hdr.slot.first_lane ? 16w1 : 0);                           \
        bit<48> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<16> behind = cell[47:32] - epoch;                                                            \
        bit<32> load = (behind == 0) ? cell[31:0] |+| hdr.lane##n.amount : hdr.lane##n.amount;           \
        lane##n.write((bit<32>)meta.link, (behind == 1) ? cell : (epoch ++ load));                       \
        planned = (behind == 1) ? 32w0 : load;                                                           \
    }                                                                                                    \
                                                                                                         \
    @hidden action lower##n() {                                                                          \
        bit<16> epoch = hdr.slot.epoch + (n < hdr.slot.first_lane ? 16w1 : 0);                           \
        bit<48> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        bit<16> behind = cell[47:32] - epoch;                                                            \
        bit<32> load = (behind == 0) ? cell[31:0] |-| hdr.lane##n.amount : 32w0;                         \
        lane##n.write((bit<32>)meta.link, (behind == 1) ? cell : (epoch ++ load));                       \
        planned = (behind == 1) ? 32w0 : load;                                                           \
    }                                                                                                    \
                                                                                                         \
    @hidden action read_load##n() {                                                                      \
        bit<48> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        planned = cell[31:0];                                                                            \
    }                                                                                                    \
                                                                                                         \
    @hidden action read_epoch##n() {                                                                     \
        bit<48> cell;                                                                                    \
        lane##n.read(cell, (bit<32>)meta.link);                                                          \
        planned = (bit<32>)cell[47:32];                                                                  \
    }                                                                                                    \
                                                                                                         \
    @hidden action gather##n() {                                                                         \
        hdr.lane##n.load = hdr.lane##n.load |+| planned;                                                 \
        bit<32> headroom = meta.capacity |-| planned;                                                    \
        hdr.lane##n.headroom = (headroom < hdr.lane##n.headroom) ? headroom : hdr.lane##n.headroom;      \
    }

#define APPLY_LANE(n)                                                                                    \
    if (hdr.slot.kind == SLOT_QUERY) {                                                                   \
        if (hdr.slot.lowers[n:n] == 0) { read_load##n(); } else { read_epoch##n(); }                     \
    } else {                                                                                             \
        if (hdr.slot.lowers[n:n] == 0) { raise##n(); } else { lower##n(); }                              \
    }                                                                                                    \
    gather##n();

control LoadTable(inout headers_t hdr, inout metadata_t meta) {
    bit<32> planned = 0;   // on this link in the lane's slot; or the epoch that was asked for

    FOR_EACH_LANE(LANE)

    apply {
        FOR_EACH_LANE(APPLY_LANE)
    }
}
