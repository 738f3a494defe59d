// Replaces the front of a frame: PARSED bytes go and EMITTED others come, 0 to 127 each; then LENGTH bytes are
// left (0: all). The frame's source address says how many: {parsed: 8, emitted: 8, length: 16, any: 16}.

#include "base.p4"

header block64_t { bit<512> bytes; }
header block32_t { bit<256> bytes; }
header block16_t { bit<128> bytes; }
header block8_t { bit<64> bytes; }
header block4_t { bit<32> bytes; }
header block2_t { bit<16> bytes; }
header block1_t { bit<8> bytes; }

struct headers_t {
    block64_t parsed64;
    block32_t parsed32;
    block16_t parsed16;
    block8_t parsed8;
    block4_t parsed4;
    block2_t parsed2;
    block1_t parsed1;
    block64_t emitted64;
    block32_t emitted32;
    block16_t emitted16;
    block8_t emitted8;
    block4_t emitted4;
    block2_t emitted2;
    block1_t emitted1;
}

struct metadata_t {
    bit<48> dst;
    bit<8> parsed;
    bit<8> emitted;
    bit<16> length;
    bit<16> ethertype;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        meta.dst = packet.lookahead<bit<48>>();
        meta.parsed = (bit<8>)packet.lookahead<bit<56>>();
        meta.emitted = (bit<8>)packet.lookahead<bit<64>>();
        meta.length = (bit<16>)packet.lookahead<bit<80>>();
        meta.ethertype = (bit<16>)packet.lookahead<bit<112>>();
        transition select(meta.ethertype) {
            FENCE: accept;
            default: at64;
        }
    }

#define BLOCK(N, NEXT)                         \
    state at##N {                              \
        transition select(meta.parsed) {       \
            N &&& N: extract##N;               \
            default: NEXT;                     \
        }                                      \
    }                                          \
    state extract##N {                         \
        packet.extract(hdr.parsed##N);         \
        transition NEXT;                       \
    }

    BLOCK(64, at32)
    BLOCK(32, at16)
    BLOCK(16, at8)
    BLOCK(8, at4)
    BLOCK(4, at2)
    BLOCK(2, at1)
    BLOCK(1, accept)
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (meta.ethertype == FENCE) {
            std.egress_spec = meta.dst[8:0];
            exit;
        }
        std.egress_spec = std.ingress_port;
#define EMIT(N, BYTES)                         \
        if (meta.emitted & N != 0) {           \
            hdr.emitted##N.setValid();         \
            hdr.emitted##N.bytes = BYTES;      \
        }
        EMIT(64, 0x808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf)
        EMIT(32, 0xc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf)
        EMIT(16, 0xe0e1e2e3e4e5e6e7e8e9eaebecedeeef)
        EMIT(8, 0xf0f1f2f3f4f5f6f7)
        EMIT(4, 0xf8f9fafb)
        EMIT(2, 0xfcfd)
        EMIT(1, 0xfe)
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (meta.length != 0) {
            truncate((bit<32>)meta.length);
        }
    }
}

EMPTY_UPDATE

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.emitted64);
        packet.emit(hdr.emitted32);
        packet.emit(hdr.emitted16);
        packet.emit(hdr.emitted8);
        packet.emit(hdr.emitted4);
        packet.emit(hdr.emitted2);
        packet.emit(hdr.emitted1);
    }
}

SWITCH
