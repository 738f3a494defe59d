// Where a packet goes: VRF, source check, route, source route or ECMP; ARP answers; packet-out.

#include "guard.p4"

control FabricIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_in;
    counter(MAX_VRFS, CounterType.packets_and_bytes) vrf_counter;
    counter(DROP_REASONS, CounterType.packets) drops;

    Guard() guard;
    Answers() answers;

    @hidden action drop(bit<32> reason) {
        drops.count(reason);
        mark_to_drop(standard_metadata);
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
        key = { standard_metadata.ingress_port: exact @name("ingress_port"); }
        actions = { set_vrf; set_host; @defaultonly NoAction; }
        const default_action = NoAction();
        size = VRF_TABLE_SIZE;
    }

    // --- by destination; what a VRF does not know is dropped, and it is not answered by ARP ---

    action to_port(PortId_t port, bit<48> dmac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.dst = dmac;
    }

    action to_group(GroupId_t group) {
        meta.group = group;
    }

    action to_controller() {
        standard_metadata.egress_spec = CPU_PORT;
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
        standard_metadata.egress_spec = port;
    }

    table source_route {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.ipv4.dst: ternary @name("dst");
        }
        actions = { to_uplink; @defaultonly NoAction; }
        const default_action = NoAction();
        size = SOURCE_ROUTE_TABLE_SIZE;
    }

    @max_group_size(ECMP_GROUP_MAX) action_selector(HashAlgorithm.crc16, ECMP_MEMBERS, 16) ecmp_selector;

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
        implementation = ecmp_selector;
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
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    apply {
        port_in.count((bit<32>)standard_metadata.ingress_port);

        if (hdr.slot.isValid() && hdr.slot.version != SLOT_VERSION) {
            drop(DROP_VERSION);
        } else if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error == 1 ||
            meta.malformed) {
            drop(DROP_MALFORMED);
        } else if (hdr.packet_out.isValid()) {
            if (hdr.slot.isValid() && hdr.slot.kind == SLOT_QUERY) {
                hdr.slot_tail.bytes_received = standard_metadata.ingress_global_timestamp;
                standard_metadata.egress_spec = CPU_PORT;
            } else {
                standard_metadata.egress_spec = hdr.packet_out.egress_port;
            }
            hdr.packet_out.setInvalid();
        } else if (hdr.slot.isValid() && hdr.slot.kind == SLOT_QUERY) {
            drop(DROP_FORGED_QUERY);
        } else if (!vrf.apply().hit) {
            drop(DROP_NO_VRF);
        } else if (!hdr.ipv4.isValid() && !(hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST)) {
            drop(DROP_NOT_IP);
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl <= 1) {
            drop(DROP_TTL);
        } else {
            if (hdr.slot.isValid()) {
                if (hdr.slot.kind == SLOT_FEEDBACK) {
                    answers.apply(hdr, meta, standard_metadata);
                }
                guard.apply(hdr, meta, standard_metadata);
            }
            if (meta.host != 0 && meta.src != meta.host) {
                drop(DROP_FORGED_SOURCE);
            } else if (meta.refused) {
                mark_to_drop(standard_metadata);   // counted by port and reason
            } else {
                if (hdr.ipv4.isValid()) {
                    vrf_counter.count((bit<32>)meta.vrf);
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
                } else if (hdr.slot.isValid() && hdr.slot.kind == SLOT_SCHEDULE) {
                    answers.apply(hdr, meta, standard_metadata);
                }
            }
        }
    }
}
