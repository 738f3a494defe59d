// Multiplication. (Division and remainder of run-time values are not in v1model: p4c refuses them.)
#include "base.p4"

header factors_t {
    bit<8> a8;
    bit<8> b8;
    bit<32> a32;
    bit<32> b32;
    bit<64> a64;
    bit<64> b64;
    bit<100> a100;
    bit<100> b100;
    int<16> sa;
    int<16> sb;
}

header products_t {
    bit<8> p8;
    bit<32> p32;
    bit<64> p64;
    bit<100> p100;
    bit<100> wide;           // the whole product of 32 by 64 bits
    int<16> ps;
    bit<64> scaled;
    bit<64> by_constant;
}

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    factors_t factors;
    products_t products;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9A00: factors;
            default: accept;
        }
    }
    state factors {
        packet.extract(hdr.factors);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.factors.isValid()) {
            hdr.products.setValid();
            hdr.products.p8 = hdr.factors.a8 * hdr.factors.b8;
            hdr.products.p32 = hdr.factors.a32 * hdr.factors.b32;
            hdr.products.p64 = hdr.factors.a64 * hdr.factors.b64;
            hdr.products.p100 = hdr.factors.a100 * hdr.factors.b100;
            hdr.products.wide = (bit<100>) hdr.factors.a32 * (bit<100>) hdr.factors.a64;
            hdr.products.ps = hdr.factors.sa * hdr.factors.sb;
            hdr.products.scaled = (hdr.factors.a64 >> 8) * 3 + (100 / 7) * 5 + 100 % 7;
            hdr.products.by_constant = hdr.factors.b64 * 0x100000001;
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
