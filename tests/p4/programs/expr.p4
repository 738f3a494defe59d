// The operators on bit<W> of up to 64 bits. The packet's EtherType chooses the width: 0x9500 + W.
#include "base.p4"
#include "ops.p4"

OPERANDS(1, 7)
OPERANDS(7, 1)
OPERANDS(8, 8)
OPERANDS(13, 3)
OPERANDS(16, 8)
OPERANDS(32, 8)
OPERANDS(33, 7)
OPERANDS(63, 1)
OPERANDS(64, 8)

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    operands1_t o1;
    operands7_t o7;
    operands8_t o8;
    operands13_t o13;
    operands16_t o16;
    operands32_t o32;
    operands33_t o33;
    operands63_t o63;
    operands64_t o64;
    results1_t r1;
    results7_t r7;
    results8_t r8;
    results13_t r13;
    results16_t r16;
    results32_t r32;
    results33_t r33;
    results63_t r63;
    results64_t r64;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9501: operands1;
            0x9507: operands7;
            0x9508: operands8;
            0x950D: operands13;
            0x9510: operands16;
            0x9520: operands32;
            0x9521: operands33;
            0x953F: operands63;
            0x9540: operands64;
            default: accept;
        }
    }
    EXTRACT(1)
    EXTRACT(7)
    EXTRACT(8)
    EXTRACT(13)
    EXTRACT(16)
    EXTRACT(32)
    EXTRACT(33)
    EXTRACT(63)
    EXTRACT(64)
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        COMPUTE(1, 7)
        COMPUTE(7, 1)
        COMPUTE(8, 8)
        COMPUTE(13, 3)
        COMPUTE(16, 8)
        COMPUTE(32, 8)
        COMPUTE(33, 7)
        COMPUTE(63, 1)
        COMPUTE(64, 8)
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
