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
        epoch = LANE_EPOCH(n);                                                                           \
        lane##n.read(cell, link);                                                                        \
        behind = cell[47:32] - epoch;                                                                    \
        planned = ((behind == 0) ? cell[31:0] : 32w0) |+| hdr.lane##n.amount;                            \
        cell = (behind == 1) ? cell : (epoch ++ planned);                                                \
        lane##n.write(link, cell);                                                                       \
        planned = (behind == 1) ? 32w0 : planned;                                                        \
    }                                                                                                    \
                                                                                                         \
    @hidden action lower##n() {                                                                          \
        epoch = LANE_EPOCH(n);                                                                           \
        lane##n.read(cell, link);                                                                        \
        behind = cell[47:32] - epoch;                                                                    \
        planned = ((behind == 0) ? cell[31:0] : 32w0) |-| hdr.lane##n.amount;                            \
        cell = (behind == 1) ? cell : (epoch ++ planned);                                                \
        lane##n.write(link, cell);                                                                       \
        planned = (behind == 1) ? 32w0 : planned;                                                        \
    }                                                                                                    \
                                                                                                         \
    @hidden action read_load##n() {                                                                      \
        lane##n.read(cell, link);                                                                        \
        planned = cell[31:0];                                                                            \
    }                                                                                                    \
                                                                                                         \
    @hidden action read_epoch##n() {                                                                     \
        lane##n.read(cell, link);                                                                        \
        planned = (bit<32>)cell[47:32];                                                                  \
    }                                                                                                    \
                                                                                                         \
    @hidden action gather##n() {                                                                         \
        hdr.lane##n.load = hdr.lane##n.load |+| planned;                                                 \
        hdr.lane##n.headroom = LEAST(hdr.lane##n.headroom, meta.capacity |-| planned);                   \
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
    // Shared by the lanes: a switch in software clears every variable for every packet.
    bit<32> link = 0;
    bit<48> cell = 0;
    bit<16> epoch = 0;
    bit<16> behind = 0;

    FOR_EACH_LANE(LANE)

    apply {
        link = (bit<32>)meta.link;
        FOR_EACH_LANE(APPLY_LANE)
    }
}
