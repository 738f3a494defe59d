// Ethernet, an optional slot header, ARP or IPv4, ports.

parser FabricParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        meta.malformed = false;
        meta.src_port = 0;
        meta.dst_port = 0;
        transition select(standard_metadata.ingress_port) {
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
            (SLOT_VERSION, 0 &&& 0xfff8): parse_lanes;   // lanes 0 to 7
            (SLOT_VERSION, 8 &&& 0xfffe): parse_lanes;   // 8 and 9
            default: malformed;
        }
    }

    state parse_lanes {
#define EXTRACT(n) packet.extract(hdr.lane##n);
        FOR_EACH_LANE(EXTRACT)
#undef EXTRACT
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

control FabricDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.slot);
#define EMIT(n) packet.emit(hdr.lane##n);
        FOR_EACH_LANE(EMIT)
#undef EMIT
        packet.emit(hdr.slot_tail);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
    }
}
