// Where a packet goes: VRF, source check, route, source route or ECMP; ARP answers; packet-out and packet-in.

#include "guard.p4"

control FabricIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                      in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                      inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                      inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Counter<bit<64>, PortId_t>(MAX_PORTS, CounterType_t.PACKETS_AND_BYTES) port_in;
    Counter<bit<64>, bit<10>>(MAX_VRFS, CounterType_t.PACKETS_AND_BYTES) vrf_counter;
    Counter<bit<32>, bit<4>>(DROP_REASONS, CounterType_t.PACKETS) drops;

    Guard() guard;

    // A counter is reached once per packet: the reason is counted at the end.
    bool dropped = false;
    bit<4> reason = 0;

    @hidden action drop(bit<32> why) {
        dropped = true;
        reason = why[3:0];
    }

    // --- which virtual switch the ingress port belongs to (vClos, section IV) ---

    action set_vrf(VrfId_t vrf) {
        meta.vrf = vrf;
    }

    action set_host(VrfId_t vrf, bit<32> address) {
        meta.vrf = vrf;
        meta.host = address;
    }

    table vrf {
        key = { ig_intr_md.ingress_port: exact @name("ingress_port"); }
        actions = { set_vrf; set_host; @defaultonly NoAction; }
        const default_action = NoAction();
        size = VRF_TABLE_SIZE;
    }

    // --- by destination; what a VRF does not know is dropped, and it is not answered by ARP ---

    action to_port(PortId_t port, bit<48> dmac) {
        ig_tm_md.ucast_egress_port = port;
        hdr.ethernet.dst = dmac;
    }

    action to_group(GroupId_t group) {
        meta.group = group;
    }

    action to_controller() {
        ig_tm_md.ucast_egress_port = CPU_PORT;
    }

    action deny() {
        meta.denied = true;
    }

    table route {
        key = {
            meta.vrf: exact @name("vrf");
            meta.dst: lpm @name("dst");
        }
        actions = { to_port; to_group; to_controller; deny; }
        const default_action = deny();
        size = ROUTE_TABLE_SIZE;
    }

    // --- the uplink: fixed by the ingress port (f(i) of vClos), or else by a hash of the 5-tuple ---

    action to_uplink(PortId_t port) {
        ig_tm_md.ucast_egress_port = port;
    }

    table source_route {
        key = {
            ig_intr_md.ingress_port: exact @name("ingress_port");
            hdr.ipv4.dst: ternary @name("dst");
        }
        actions = { to_uplink; @defaultonly NoAction; }
        const default_action = NoAction();
        size = SOURCE_ROUTE_TABLE_SIZE;
    }

    // P4Info calls a selector by the name of its profile.
    ActionProfile(ECMP_MEMBERS) ecmp_selector;
    Hash<bit<16>>(HashAlgorithm_t.CRC16) five_tuple;
    ActionSelector(ecmp_selector, five_tuple, SelectorMode_t.FAIR, ECMP_GROUP_MAX, ECMP_TABLE_SIZE) ecmp_groups;

    table ecmp {
        key = {
            meta.group: exact @name("group");
            hdr.ipv4.src: selector;
            hdr.ipv4.dst: selector;
            hdr.ipv4.protocol: selector;
            meta.src_port: selector;
            meta.dst_port: selector;
        }
        actions = { to_uplink; @defaultonly NoAction; }
        implementation = ecmp_groups;
        size = ECMP_TABLE_SIZE;
    }

    // --- the fabric's hosts, whatever their VRF: a leaf answers ARP, so that hosts need no static neighbours ---

    action is_host(bit<48> mac) {
        meta.mac = mac;
    }

    table host {
        key = { meta.dst: exact @name("address"); }
        actions = { is_host; @defaultonly NoAction; }
        const default_action = NoAction();
        size = HOST_TABLE_SIZE;
    }

    @hidden action answer() {
        hdr.ethernet.dst = hdr.arp.sender_mac;
        hdr.ethernet.src = meta.mac;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = meta.src;
        hdr.arp.sender_mac = meta.mac;
        hdr.arp.sender_ip = meta.dst;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
    }

    // --- the controller: registers are one per pipe, so a QUERY goes through the pipe of the link it asks for ---

    @hidden action to_pipe_of_link() {
        ig_tm_md.ucast_egress_port = hdr.slot.port[8:7] ++ RECIRCULATION;
    }

    // In two steps, because an action writes a constant, or shifts a field, but not both in one header field's word.
    @hidden action to_cpu() {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = 0;
        hdr.packet_in.pad = 0;
    }

    @hidden action came_from(PortId_t port) {
        hdr.packet_in.ingress_port = port;
    }

    apply {
        port_in.count(ig_intr_md.ingress_port);

        bool answered = ig_intr_md.ingress_port[6:0] == RECIRCULATION;
        bool query = false;
        if (hdr.slot.isValid() && hdr.slot.kind == SLOT_QUERY) {
            query = true;
        }
        if (ig_prsr_md.parser_err != PARSER_ERROR_OK || meta.checksum_error || meta.malformed) {
            if (hdr.slot.isValid() && hdr.slot.version != SLOT_VERSION) {
                drop(DROP_VERSION);
            } else {
                drop(DROP_MALFORMED);
            }
        } else if (hdr.packet_out.isValid()) {
            if (query) {
                to_pipe_of_link();
            } else {
                ig_tm_md.ucast_egress_port = hdr.packet_out.egress_port;
            }
            hdr.packet_out.setInvalid();
        } else if (query && answered) {
            ig_tm_md.ucast_egress_port = CPU_PORT;
        } else if (query) {
            drop(DROP_FORGED_QUERY);
        } else if (!vrf.apply().hit) {
            drop(DROP_NO_VRF);
        } else if (!hdr.ipv4.isValid() && !(hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST)) {
            drop(DROP_NOT_IP);
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl <= 1) {
            drop(DROP_TTL);
        } else {
            if (hdr.slot.isValid()) {
                guard.apply(meta, hdr.slot.kind[1:1], ig_intr_md, ig_prsr_md);
            }
            if (meta.host != 0 && meta.src != meta.host) {
                drop(DROP_FORGED_SOURCE);
            } else {
                if (hdr.ipv4.isValid()) {
                    vrf_counter.count(meta.vrf[9:0]);
                    hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                }
                route.apply();
                if (meta.denied || hdr.arp.isValid()) {
                    if (!host.apply().hit) {
                        drop(DROP_NO_ROUTE);
                    } else if (meta.denied) {
                        drop(DROP_OTHER_VRF);
                    } else {
                        answer();
                    }
                } else if (meta.group != 0) {
                    if (!source_route.apply().hit) {
                        if (!ecmp.apply().hit) {
                            drop(DROP_NO_UPLINK);
                        }
                    }
                }
            }
        }

        if (dropped) {
            drops.count(reason);
            ig_dprsr_md.drop_ctl = 1;
        } else if (meta.refused) {
            ig_dprsr_md.drop_ctl = 1;   // counted by port and reason
        } else if (ig_tm_md.ucast_egress_port == CPU_PORT) {
            to_cpu();
            if (query) { came_from(CPU_PORT); } else { came_from(ig_intr_md.ingress_port); }
        }
    }
}
