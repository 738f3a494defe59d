#include <core.p4>
#include <v1model.p4>

// Pushes and pops headers in front of IPv4, in every size and by every road that a packet can take.
// The source address's last byte says what to do (`op`).

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header tag_t { bit<16> value; bit<16> type; }
header big_t { bit<256> filler; bit<16> type; }
header vlan_t { bit<16> tci; bit<16> type; }
header ipv4_t {
    bit<8> version_ihl; bit<8> tos; bit<16> length; bit<16> id; bit<16> fragment; bit<8> ttl; bit<8> protocol;
    bit<16> checksum; bit<32> src; bit<32> dst;
}
struct headers_t { ethernet_t ethernet; vlan_t vlan; tag_t[3] tags; big_t big; ipv4_t ipv4; }
struct metadata_t { @field_list(1) bit<8> rounds; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x8100: vlan; 0x9001: tag; 0x9002: big; 0x0800: ipv4; default: accept; }
    }
    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.type) { 0x9001: tag; 0x0800: ipv4; default: accept; }
    }
    state tag {
        packet.extract(hdr.tags.next);
        transition select(hdr.tags.last.type) { 0x9001: tag; 0x9002: big; 0x0800: ipv4; default: accept; }
    }
    state big {
        packet.extract(hdr.big);
        transition select(hdr.big.type) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 { packet.extract(hdr.ipv4); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply {} }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 3 - std.ingress_port;
        if (std.instance_type == 4 || std.instance_type == 6) { std.egress_spec = 2; }
        bit<8> op = hdr.ethernet.src[7:0];
        if (op == 1) {                     // push one tag
            hdr.tags.push_front(1);
            hdr.tags[0].setValid();
            hdr.tags[0].value = 0xABCD;
            hdr.tags[0].type = hdr.ethernet.type;
            hdr.ethernet.type = 0x9001;
        } else if (op == 2) {              // pop one tag
            hdr.ethernet.type = hdr.tags[0].type;
            hdr.tags.pop_front(1);
        } else if (op == 3) {              // push 34 bytes
            hdr.big.setValid();
            hdr.big.filler = 0x1234567890;
            hdr.big.type = hdr.ethernet.type;
            hdr.ethernet.type = 0x9002;
        } else if (op == 4) {              // pop them
            hdr.ethernet.type = hdr.big.type;
            hdr.big.setInvalid();
        } else if (op == 5) {              // one copy each to port 1 and port 2
            std.mcast_grp = 1;
        } else if (op == 6) {
            clone(CloneType.I2E, 1);
        } else if (op == 7 && std.instance_type != 6) {
            resubmit_preserving_field_list(1);
        } else if (op == 10) {             // host at 1, tunnel between 2 and 3, host at 4
            if (std.ingress_port == 1 || std.ingress_port == 4) {
                std.egress_spec = std.ingress_port == 1 ? 9w2 : 9w3;
                hdr.big.setValid();
                hdr.big.filler = 1;
                hdr.big.type = hdr.ethernet.type;
                hdr.ethernet.type = 0x9002;
            } else {
                std.egress_spec = std.ingress_port == 3 ? 9w4 : 9w1;
                hdr.ethernet.type = hdr.big.type;
                hdr.big.setInvalid();
            }
        } else if (op == 11) {
            truncate(60);
        } else if (op == 12) {             // untag a VLAN
            hdr.ethernet.type = hdr.vlan.type;
            hdr.vlan.setInvalid();
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        bit<8> op = hdr.ethernet.src[7:0];
        if (op == 8 && std.instance_type == 0) { clone(CloneType.E2E, 1); }
        if (op == 9 && meta.rounds < 2) {
            meta.rounds = meta.rounds + 1;
            hdr.big.setValid();
            hdr.big.filler = (bit<256>)meta.rounds;
            hdr.big.type = 0x9002;
            hdr.ethernet.type = 0x9002;
            recirculate_preserving_field_list(1);
        }
        if (op >= 5 && op != 10) { hdr.ethernet.dst[7:0] = std.instance_type[7:0]; hdr.ethernet.dst[15:8] = std.egress_rid[7:0]; }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply {} }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
