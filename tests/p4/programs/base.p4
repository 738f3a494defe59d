// What every feature program starts from: Ethernet, and the tests' fence.
//
// A fence is a packet of EtherType 0x88B6 that leaves, untouched, at the port that its destination address
// names. A test sends one after the packets it is about: when it is back, so is all that came before it.

#include <core.p4>
#include <v1model.p4>

const bit<16> FENCE = 0x88B6;
const bit<9> CPU_PORT = 255;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

// Ends the control for a fence and for a frame too short for Ethernet (which leaves nowhere).
#define FENCE_INGRESS                                            \
    if (!hdr.ethernet.isValid()) {                               \
        mark_to_drop(std);                                       \
        exit;                                                    \
    }                                                            \
    if (hdr.ethernet.ethertype == FENCE) {                       \
        std.egress_spec = hdr.ethernet.dst[8:0];                 \
        exit;                                                    \
    }
#define FENCE_EGRESS                                             \
    if (hdr.ethernet.isValid() && hdr.ethernet.ethertype == FENCE) { \
        exit;                                                    \
    }

#define EMPTY_VERIFY                                             \
    control Verify(inout headers_t hdr, inout metadata_t meta) { \
        apply {}                                                 \
    }
#define EMPTY_UPDATE                                             \
    control Update(inout headers_t hdr, inout metadata_t meta) { \
        apply {}                                                 \
    }
#define EMPTY_EGRESS                                             \
    control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { \
        apply {}                                                 \
    }
#define DEPARSE_ALL                                              \
    control Deparse(packet_out packet, in headers_t hdr) {       \
        apply {                                                  \
            packet.emit(hdr);                                    \
        }                                                        \
    }
#define SWITCH V1Switch(Parse(), Verify(), TheIngress(), TheEgress(), Update(), Deparse()) main;
