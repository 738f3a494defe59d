// What happens on the way out: the link's load table, ECN marking, counters, packet-in.

#include "load_table.p4"

control FabricEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_out;
    LoadTable() load_table;

    action set_link(bit<32> capacity, bit<19> ecn_threshold) {
        meta.capacity = capacity;
        meta.ecn_threshold = ecn_threshold;
    }

    action no_link() {
        meta.capacity = 0;
        meta.ecn_threshold = 0;
    }

    table link {
        key = { meta.link: exact @name("egress_port"); }
        actions = { set_link; @defaultonly no_link; }
        const default_action = no_link();
        size = LINK_TABLE_SIZE;
    }

    apply {
        port_out.count((bit<32>)standard_metadata.egress_port);

        meta.link = standard_metadata.egress_port;
        if (hdr.slot.isValid() && hdr.slot.kind == SLOT_QUERY) {
            meta.link = hdr.slot.port[8:0];
        }
        link.apply();

        if (hdr.slot.isValid() && hdr.slot.kind != SLOT_FEEDBACK) {
            hdr.slot.hops = hdr.slot.hops |+| 1;
            load_table.apply(hdr, meta);
        }

        // Not what carries a slot header: a Tofino 1 does not see the IPv4 header behind it here.
        if (meta.ecn_threshold != 0 && standard_metadata.enq_qdepth >= meta.ecn_threshold &&
            !hdr.slot.isValid() && hdr.ipv4.isValid() && hdr.ipv4.ecn != ECN_NOT_CAPABLE) {
            hdr.ipv4.ecn = ECN_CONGESTED;
        }

        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.pad = 0;
        }
    }
}
