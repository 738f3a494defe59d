// What happens on the way out: the link's load table, ECN marking, counters.

#include "load_table.p4"

// The capacity comes as action data: in a field, it would bind the fields of all lanes to one group of containers.
#define LEFT(n) meta.planned##n = capacity |-| meta.planned##n;
#define NOTHING_LEFT(n) meta.planned##n = 0;
#define LEAST(n) hdr.lane##n.headroom = min(hdr.lane##n.headroom, meta.planned##n);

control FabricEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
                     in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                     inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                     inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Counter<bit<64>, PortId_t>(MAX_PORTS, CounterType_t.PACKETS_AND_BYTES) port_out;
    LoadTable() load_table;

    action set_link(bit<32> capacity, bit<19> ecn_threshold) {
        FOR_EACH_LANE(LEFT)
        meta.ecn_threshold = ecn_threshold[15:0];
        meta.ecn_unreachable = ecn_threshold[18:16];
    }

    action no_link() {
        FOR_EACH_LANE(NOTHING_LEFT)
        meta.ecn_threshold = 0;
        meta.ecn_unreachable = 0;
    }

    @hidden action leasts() { FOR_EACH_LANE(LEAST) }

    table link {
        key = { meta.link: exact @name("egress_port"); }
        actions = { set_link; @defaultonly no_link; }
        const default_action = no_link();
        size = LINK_TABLE_SIZE;
    }

    // Fields are compared with constants only: the depth has reached the threshold if nothing is lacking. What moves the
    // depth to a field of 16 bits is a hash that changes nothing.
    Hash<bit<16>>(HashAlgorithm_t.IDENTITY) in_packets;
    bit<16> lacking;

    @hidden action congested() {
        hdr.ipv4.ecn = ECN_CONGESTED;
    }

    @hidden table mark {
        key = {
            hdr.ipv4.isValid(): exact;
            hdr.ipv4.ecn: ternary;
            meta.ecn_threshold: ternary;
            meta.ecn_unreachable: ternary;
            lacking: ternary;
        }
        actions = { congested; NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, ECN_NOT_CAPABLE, _, _, _): NoAction();
            (true, _, 0, 0, _): NoAction();   // no threshold
            (true, _, _, 0, 0): congested();
        }
    }

    apply {
        port_out.count(eg_intr_md.egress_port);
        bit<16> depth = in_packets.get({ eg_intr_md.enq_qdepth[18:DEPTH_SHIFT] });

        meta.link = eg_intr_md.egress_port;
        if (hdr.slot.isValid() && hdr.slot.kind == SLOT_QUERY) {
            meta.link = hdr.slot.port[8:0];
        }
        bool carrier = hdr.slot.isValid() && hdr.slot.kind != SLOT_FEEDBACK;
        if (carrier) {
            hdr.slot.hops = hdr.slot.hops |+| 1;
            load_table.apply(hdr, meta);
        }
        link.apply();
        if (carrier) {
            leasts();
        }

        lacking = meta.ecn_threshold |-| depth;
        mark.apply();
    }
}
#undef LEAST
#undef NOTHING_LEFT
#undef LEFT
