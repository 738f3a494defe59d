// The controller's port: packet-in and packet-out with controller headers, and digests.
#include "base.p4"

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
    bit<32> context;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<3> mode;
    bit<4> pad;
}

header payload_t {
    bit<8> kind;             // 1 to the controller, 2 digest, 3 both, otherwise back
    bit<32> value;
}

struct seen_t {
    bit<48> address;
    bit<9> port;
    bit<32> value;
}

struct other_seen_t {
    bit<8> kind;
    bit<128> wide;
}

struct metadata_t {}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    payload_t payload;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: controller;
            default: ethernet;
        }
    }
    state controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0xA100: payload;
            default: accept;
        }
    }
    state payload {
        packet.extract(hdr.payload);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            if (hdr.ethernet.isValid() && hdr.packet_out.mode != 0) {
                hdr.ethernet.src = (bit<48>) hdr.packet_out.mode;
            }
            hdr.packet_out.setInvalid();
            exit;
        }
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.payload.isValid()) {
            if (hdr.payload.kind & 1 == 1) {
                std.egress_spec = CPU_PORT;
            }
            if (hdr.payload.kind & 2 == 2) {
                digest<seen_t>(1, { hdr.ethernet.src, std.ingress_port, hdr.payload.value });
            }
            if (hdr.payload.kind == 8) {
                digest<other_seen_t>(2, { hdr.payload.kind, (bit<128>) hdr.payload.value << 64 });
                mark_to_drop(std);
            }
        }
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = 5;
            hdr.packet_in.context = 0;
            if (hdr.payload.isValid()) {
                hdr.packet_in.context = hdr.payload.value;
            }
        }
    }
}

EMPTY_UPDATE
DEPARSE_ALL
SWITCH
