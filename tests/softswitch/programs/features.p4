// Every kind of entity that a P4Runtime server serves, once.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> _pad;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> _pad;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> id;
    bit<3>  flags;
    bit<13> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct learn_t {
    bit<48> src;
    bit<9>  port;
}

struct metadata_t {
    bit<16> nexthop;
    bit<2>  color;
}

parser FeaturesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    @id(0x03000001) value_set<bit<16>>(4) ip_types;

    state start {
        transition select(std.ingress_port) {
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
        transition select(hdr.ethernet.ether_type) {
            0x0800: parse_ipv4;
            ip_types: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control FeaturesVerify(inout headers_t hdr, inout metadata_t meta) { apply {} }

control FeaturesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(512, CounterType.packets_and_bytes) port_in;
    meter(16, MeterType.packets) port_meter;
    register<bit<64>>(16) seen;
    direct_counter(CounterType.packets_and_bytes) route_counter;
    direct_meter<bit<2>>(MeterType.bytes) acl_meter;
    action_profile(8) nexthop_profile;
    @max_group_size(8) action_selector(HashAlgorithm.crc16, 32, 16) ecmp_selector;

    action drop() { mark_to_drop(std); }
    action forward(bit<9> port, bit<48> dst) {
        std.egress_spec = port;
        hdr.ethernet.dst = dst;
    }
    action to_port(bit<9> port) { std.egress_spec = port; }
    action flood(bit<16> group) { std.mcast_grp = group; }
    action to_cpu() { std.egress_spec = CPU_PORT; }
    action mirror(bit<32> session) { clone(CloneType.I2E, session); }
    action learn() { digest<learn_t>(1, { hdr.ethernet.src, std.ingress_port }); }
    action set_nexthop(bit<16> nexthop) { meta.nexthop = nexthop; route_counter.count(); }
    action route_drop() { mark_to_drop(std); route_counter.count(); }
    action permit() { acl_meter.read(meta.color); }
    action deny() { acl_meter.read(meta.color); mark_to_drop(std); }

    table l2 {
        key = { hdr.ethernet.dst: exact @name("dst"); }
        actions = { to_port; flood; to_cpu; @defaultonly drop; }
        const default_action = drop();
        size = 4;
    }
    table source {
        key = { hdr.ethernet.src: exact; std.ingress_port: exact; }
        actions = { learn; mirror; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    table route {
        key = { hdr.ipv4.dst: lpm; }
        actions = { set_nexthop; route_drop; }
        default_action = route_drop();
        counters = route_counter;
        size = 20000;
    }
    table nexthop {
        key = { meta.nexthop: exact; }
        actions = { forward; drop; }
        implementation = nexthop_profile;
        size = 64;
    }
    table ecmp {
        key = { meta.nexthop: exact; hdr.ipv4.src: selector; hdr.ipv4.dst: selector; }
        actions = { forward; drop; }
        implementation = ecmp_selector;
        size = 64;
    }
    table acl {
        key = {
            hdr.ipv4.src: ternary;
            hdr.ipv4.protocol: optional;
            hdr.ipv4.total_length: range;
        }
        actions = { permit; deny; }
        default_action = permit();
        meters = acl_meter;
        size = 256;
    }
    table fixed {
        key = { hdr.ipv4.ttl: exact; }
        actions = { drop; NoAction; }
        const entries = {
            0: drop();
            1: drop();
        }
    }
    table preset {
        key = { hdr.ipv4.tos: ternary; }
        actions = { to_port; NoAction; }
        entries = {
            const 0x10 &&& 0xf0: to_port(3);
            0x20 &&& 0xf0: to_port(4);
        }
        size = 16;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            port_in.count((bit<32>) std.ingress_port);
            port_meter.execute_meter((bit<32>) (bit<4>) std.ingress_port, meta.color);
            bit<64> value;
            seen.read(value, (bit<32>) (bit<4>) std.ingress_port);
            seen.write((bit<32>) (bit<4>) std.ingress_port, value + 1);
            source.apply();
            l2.apply();
            if (hdr.ipv4.isValid()) {
                route.apply();
                if (!nexthop.apply().hit) { ecmp.apply(); }
                acl.apply();
                fixed.apply();
                preset.apply();
            }
        }
    }
}

control FeaturesEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
        }
    }
}

control FeaturesCompute(inout headers_t hdr, inout metadata_t meta) { apply {} }

control FeaturesDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(FeaturesParser(), FeaturesVerify(), FeaturesIngress(), FeaturesEgress(), FeaturesCompute(), FeaturesDeparser()) main;
