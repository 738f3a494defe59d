// Standard metadata as ingress and egress see it, headers added and removed, random numbers, and the fields that
// differ from run to run (timestamps, queue depths) in a header of their own, so that a test can mask them.
#include "base.p4"

header request_t {
    bit<8> op;               // 1 add a header, 2 remove one, 3 drop in ingress, 4 drop in egress, 5 random
    bit<9> port;             // where it shall go
    bit<7> pad;
    bit<32> low;
    bit<32> high;
}

header steady_t {
    bit<9> ingress_port;
    bit<9> ingress_spec;
    bit<9> egress_port;
    bit<9> egress_spec;
    bit<3> priority;
    bit<1> checksum_error;
    bit<32> instance_type;
    bit<32> ingress_length;
    bit<32> egress_length;
    bit<16> rid;
}

header unsteady_t {
    bit<48> ingress_time;
    bit<48> egress_time;
    bit<32> enqueued;
    bit<32> waited;
    bit<19> depth_in;
    bit<19> depth_out;
    bit<2> ordered;          // egress is not before ingress, and was dequeued not before it was enqueued
    bit<32> random;
    bit<8> in_range;
}

header filler_t {
    bit<160> data;
}

struct metadata_t {
    bit<9> ingress_spec;
    bit<32> ingress_length;
    bit<32> random;
}

struct headers_t {
    ethernet_t ethernet;
    steady_t steady;
    unsteady_t unsteady;
    request_t request;
    filler_t filler;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0xA300: request;
            default: accept;
        }
    }
    state request {
        packet.extract(hdr.request);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        meta.ingress_spec = std.egress_spec;
        meta.ingress_length = std.packet_length;
        std.egress_spec = std.ingress_port;
        std.priority = 5;
        if (hdr.request.isValid()) {
            std.egress_spec = hdr.request.port;
            if (hdr.request.op == 1) {
                hdr.filler.setValid();
                hdr.filler.data = 0xDEADBEEF;
            } else if (hdr.request.op == 2) {
                hdr.request.setInvalid();
            } else if (hdr.request.op == 3) {
                mark_to_drop(std);
            } else if (hdr.request.op == 5) {
                random(meta.random, hdr.request.low, hdr.request.high);
            }
        }
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_EGRESS
        hdr.steady.setValid();
        hdr.steady.ingress_port = std.ingress_port;
        hdr.steady.ingress_spec = meta.ingress_spec;
        hdr.steady.egress_port = std.egress_port;
        hdr.steady.egress_spec = std.egress_spec;
        hdr.steady.priority = std.priority;
        hdr.steady.checksum_error = std.checksum_error;
        hdr.steady.instance_type = std.instance_type;
        hdr.steady.ingress_length = meta.ingress_length;
        hdr.steady.egress_length = std.packet_length;
        hdr.steady.rid = std.egress_rid;
        hdr.unsteady.setValid();
        hdr.unsteady.ingress_time = std.ingress_global_timestamp;
        hdr.unsteady.egress_time = std.egress_global_timestamp;
        hdr.unsteady.enqueued = std.enq_timestamp;
        hdr.unsteady.waited = std.deq_timedelta;
        hdr.unsteady.depth_in = std.enq_qdepth;
        hdr.unsteady.depth_out = std.deq_qdepth;
        hdr.unsteady.ordered = (bit<1>) (std.egress_global_timestamp >= std.ingress_global_timestamp) ++ 1w1;
        hdr.unsteady.random = meta.random;
        hdr.unsteady.in_range = 0;
        if (hdr.request.isValid()) {
            hdr.unsteady.in_range = (bit<8>) (bit<1>) (hdr.request.low <= meta.random && meta.random <= hdr.request.high);
            if (hdr.request.op == 4) {
                mark_to_drop(std);
            }
        }
    }
}

EMPTY_UPDATE
DEPARSE_ALL
SWITCH
