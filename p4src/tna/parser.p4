// Ethernet, an optional slot header, ARP or IPv4, ports. Ingress hands egress only what it cannot see by itself.

#define EXTRACT(n) packet.extract(hdr.lane##n);

parser FabricIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                           out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        meta.vrf = 0;
        meta.host = 0;
        meta.src = 0;
        meta.dst = 0;
        meta.denied = false;
        meta.mac = 0;
        meta.group = 0;
        meta.src_port = 0;
        meta.dst_port = 0;
        meta.malformed = false;
        meta.checksum_error = false;
        meta.refused = false;
        transition select(ig_intr_md.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_SLOT: parse_slot;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }

    state parse_slot {
        packet.extract(hdr.slot);
        transition select(hdr.slot.version, hdr.slot.first_lane) {
            (SLOT_VERSION, 0 &&& 0xfff8): parse_lanes;
            (SLOT_VERSION, 8 &&& 0xfffe): parse_lanes;
            default: malformed;
        }
    }

    state parse_lanes {
        FOR_EACH_LANE(EXTRACT)
        packet.extract(hdr.slot_tail);
        transition select(hdr.slot.kind, hdr.slot.next_ethertype) {
            (SLOT_QUERY, _): accept;
            (SLOT_SCHEDULE, ETHERTYPE_IPV4): parse_ipv4;
            (SLOT_FEEDBACK, ETHERTYPE_IPV4): parse_ipv4;
            default: malformed;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        meta.src = hdr.arp.sender_ip;
        meta.dst = hdr.arp.target_ip;
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = ipv4_checksum.verify();
        meta.src = hdr.ipv4.src;
        meta.dst = hdr.ipv4.dst;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTO_TCP): parse_ports;
            (4, 5, 0, 0, PROTO_UDP): parse_ports;
            (4, 5, _, _, _): accept;
            default: malformed;
        }
    }

    state parse_ports {
        packet.extract(hdr.ports);
        meta.src_port = hdr.ports.src;
        meta.dst_port = hdr.ports.dst;
        transition accept;
    }

    state malformed {
        meta.malformed = true;
        transition accept;
    }
}

#define IPV4_CHECKSUM_FIELDS                                                            \
    {   hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn,                    \
        hdr.ipv4.total_length, hdr.ipv4.identification, hdr.ipv4.reserved,              \
        hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,      \
        hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

#define EMIT(n) packet.emit(hdr.lane##n);

control FabricIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                              in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUM_FIELDS);
        }
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.slot);
        FOR_EACH_LANE(EMIT)
        packet.emit(hdr.slot_tail);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
    }
}

// What goes to the CPU begins with the header packet_in, which nobody but the controller reads.
parser FabricEgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                          out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        transition select(eg_intr_md.egress_port) {
            CPU_PORT: accept;
            default: parse_ethernet;
        }
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_SLOT: parse_slot;
            default: accept;
        }
    }

    state parse_slot {
        packet.extract(hdr.slot);
        FOR_EACH_LANE(EXTRACT)
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control FabricEgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                             in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUM_FIELDS);
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.slot);
        FOR_EACH_LANE(EMIT)
        packet.emit(hdr.ipv4);
    }
}
#undef EMIT
#undef EXTRACT
