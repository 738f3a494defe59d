// Every hash algorithm over fields of odd and wide widths, with base and maximum.
#include "base.p4"

header input_t {
    bit<8> a;
    bit<16> b;
    bit<32> c;
    bit<48> d;
    bit<128> e;
    bit<4> f;
    bit<7> g;
    bit<5> h;
}

header hashes_t {
    bit<32> crc32;
    bit<16> crc16;
    bit<16> csum16;
    bit<16> xor16;
    bit<32> identity;
    bit<16> crc16_bounded;
    bit<16> crc32_bounded;
    bit<32> crc16_odd;
    bit<32> crc32_odd;
    bit<16> csum16_odd;
    bit<16> xor16_wide;
    bit<64> identity_wide;
    bit<32> crc32_constant;
    bit<16> crc16_custom;
    bit<32> crc32_custom;
}

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    input_t input;
    hashes_t hashes;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9E00: input;
            default: accept;
        }
    }
    state input {
        packet.extract(hdr.input);
        transition accept;
    }
}

EMPTY_VERIFY

#define ALL { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d, hdr.input.e }
#define EVEN { hdr.input.b, hdr.input.c, hdr.input.d, hdr.input.e }
#define ODD { hdr.input.f, hdr.input.g, hdr.input.c, hdr.input.h }

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.input.isValid()) {
            hdr.hashes.setValid();
            hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0, ALL, 33w0x100000000);
            hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0, ALL, 17w0x10000);
            hash(hdr.hashes.csum16, HashAlgorithm.csum16, 16w0, EVEN, 17w0x10000);
            hash(hdr.hashes.xor16, HashAlgorithm.xor16, 16w0, EVEN, 17w0x10000);
            hash(hdr.hashes.identity, HashAlgorithm.identity, 32w0, { hdr.input.c }, 33w0x100000000);
            hash(hdr.hashes.crc16_bounded, HashAlgorithm.crc16, 16w100, ALL, 16w10);
            hash(hdr.hashes.crc32_bounded, HashAlgorithm.crc32, 16w7, ALL, 16w1000);
            hash(hdr.hashes.crc16_odd, HashAlgorithm.crc16, 32w0, ODD, 33w0x100000000);
            hash(hdr.hashes.crc32_odd, HashAlgorithm.crc32, 32w0, ODD, 33w0x100000000);
            hash(hdr.hashes.csum16_odd, HashAlgorithm.csum16, 16w0, ODD, 17w0x10000);
            hash(hdr.hashes.xor16_wide, HashAlgorithm.xor16, 16w0, { hdr.input.e, hdr.input.b }, 17w0x10000);
            hash(hdr.hashes.identity_wide, HashAlgorithm.identity, 64w0, { hdr.input.b, hdr.input.d },
                 64w0xFFFFFFFFFFFFFFFF);
            hash(hdr.hashes.crc32_constant, HashAlgorithm.crc32, 32w0, { hdr.input.c, 16w0xBEEF, hdr.input.a },
                 33w0x100000000);
            hash(hdr.hashes.crc16_custom, HashAlgorithm.crc16_custom, 16w0, ALL, 17w0x10000);
            hash(hdr.hashes.crc32_custom, HashAlgorithm.crc32_custom, 32w0, ALL, 33w0x100000000);
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
