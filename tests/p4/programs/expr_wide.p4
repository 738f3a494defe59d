// The operators on bit<W> of more than 64 bits. The packet's EtherType chooses the width: 0x9500 + W.
#include "base.p4"
#include "ops.p4"

OPERANDS(65, 7)
OPERANDS(72, 8)
OPERANDS(128, 8)
OPERANDS(129, 7)
OPERANDS(256, 8)

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    operands65_t o65;
    operands72_t o72;
    operands128_t o128;
    operands129_t o129;
    operands256_t o256;
    results65_t r65;
    results72_t r72;
    results128_t r128;
    results129_t r129;
    results256_t r256;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9541: operands65;
            0x9548: operands72;
            0x9580: operands128;
            0x9581: operands129;
            0x9600: operands256;
            default: accept;
        }
    }
    EXTRACT(65)
    EXTRACT(72)
    EXTRACT(128)
    EXTRACT(129)
    EXTRACT(256)
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        COMPUTE(65, 7)
        COMPUTE(72, 8)
        COMPUTE(128, 8)
        COMPUTE(129, 7)
        COMPUTE(256, 8)
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
