// The link load table: K lanes; lane j holds, per egress port, the load planned in the one slot of the window
// with slot mod K == j, together with that slot's epoch: see v1model/load_table.p4. Here a cell is a pair, and
// raise, lower and the two reads are the four actions that a register can have, of which one runs per lane and packet.
//
// A stateful ALU has two inputs: the epoch and the amount.

struct cell_t {
    bit<32> load;
    bit<32> epoch;
}

#define LANE(n)                                                                                          \
    Register<cell_t, PortId_t>(MAX_PORTS, {0, 0}) lane##n;                                               \
                                                                                                         \
    RegisterAction<cell_t, PortId_t, bit<32>>(lane##n) add##n = {                                        \
        void apply(inout cell_t cell, out bit<32> load) {                                                \
            load = 0;                                                                                    \
            if (cell.epoch == (bit<32>)meta.epoch##n) {                                                  \
                cell.load = cell.load |+| hdr.lane##n.amount;                                            \
                load = cell.load;                                                                        \
            } else if (NOT_LATE(cell.epoch, (bit<32>)meta.epoch##n)) {                                   \
                cell.load = hdr.lane##n.amount;                                                          \
                cell.epoch = (bit<32>)meta.epoch##n;                                                     \
                load = cell.load;                                                                        \
            }                                                                                            \
        }                                                                                                \
    };                                                                                                   \
                                                                                                         \
    RegisterAction<cell_t, PortId_t, bit<32>>(lane##n) subtract##n = {                                   \
        void apply(inout cell_t cell, out bit<32> load) {                                                \
            load = 0;                                                                                    \
            if (cell.epoch == (bit<32>)meta.epoch##n) {                                                  \
                cell.load = cell.load |-| hdr.lane##n.amount;                                            \
                load = cell.load;                                                                        \
            } else if (NOT_LATE(cell.epoch, (bit<32>)meta.epoch##n)) {                                   \
                cell.load = 0;                                                                           \
                cell.epoch = (bit<32>)meta.epoch##n;                                                     \
            }                                                                                            \
        }                                                                                                \
    };                                                                                                   \
                                                                                                         \
    RegisterAction<cell_t, PortId_t, bit<32>>(lane##n) fetch_load##n = {                                 \
        void apply(inout cell_t cell, out bit<32> load) { load = cell.load; }                            \
    };                                                                                                   \
                                                                                                         \
    RegisterAction<cell_t, PortId_t, bit<32>>(lane##n) fetch_epoch##n = {                                \
        void apply(inout cell_t cell, out bit<32> epoch) { epoch = cell.epoch; }                         \
    };                                                                                                   \
                                                                                                         \
    @hidden action raise##n() { meta.planned##n = add##n.execute(meta.link); }                           \
    @hidden action lower##n() { meta.planned##n = subtract##n.execute(meta.link); }                      \
    @hidden action read_load##n() { meta.planned##n = fetch_load##n.execute(meta.link); }                \
    @hidden action read_epoch##n() { meta.planned##n = fetch_epoch##n.execute(meta.link); }              \
                                                                                                         \
    @hidden table access##n {                                                                            \
        key = {                                                                                          \
            hdr.slot.kind: exact;                                                                        \
            hdr.slot.lowers[n:n]: exact;                                                                 \
        }                                                                                                \
        actions = { raise##n; lower##n; read_load##n; read_epoch##n; @defaultonly NoAction; }            \
        const default_action = NoAction();                                                               \
        const entries = {                                                                                \
            (SLOT_SCHEDULE, 0): raise##n();                                                              \
            (SLOT_SCHEDULE, 1): lower##n();                                                              \
            (SLOT_QUERY, 0): read_load##n();                                                             \
            (SLOT_QUERY, 1): read_epoch##n();                                                            \
        }                                                                                                \
    }

#define NOW(n) meta.epoch##n = hdr.slot.epoch;
#define NEXT(n) if (hdr.slot.first_lane[3:0] > n) { meta.epoch##n = next_epoch; }
#define ACCESS(n) access##n.apply();
#define SUM(n) hdr.lane##n.load = hdr.lane##n.load |+| meta.planned##n;

control LoadTable(inout headers_t hdr, inout egress_metadata_t meta) {
    FOR_EACH_LANE(LANE)

    @hidden action now() { FOR_EACH_LANE(NOW) }
    @hidden action sums() { FOR_EACH_LANE(SUM) }

    apply {
        bit<16> next_epoch = hdr.slot.epoch + 1;
        now();
        FOR_EACH_LANE(NEXT)
        FOR_EACH_LANE(ACCESS)
        sums();
    }
}
#undef SUM
#undef ACCESS
#undef NEXT
#undef NOW
#undef LANE
