// Action profiles and selectors: members shared by entries, groups by hash of the flow, both algorithms.
#include "base.p4"

header flow_t {
    bit<16> service;
    bit<32> src;
    bit<32> dst;
    bit<16> src_port;
    bit<16> dst_port;
}

header choice_t {
    bit<16> profile;
    bit<16> selector;
    bit<16> selector32;
}

struct metadata_t {
    bit<16> chosen;
}

struct headers_t {
    ethernet_t ethernet;
    flow_t flow;
    choice_t choice;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0xA200: flow;
            default: accept;
        }
    }
    state flow {
        packet.extract(hdr.flow);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action_profile(32) profile;
    action_selector(HashAlgorithm.crc16, 64, 16) selector;
    action_selector(HashAlgorithm.crc32, 64, 32) selector32;

    action choose(bit<16> value) { meta.chosen = value; }
    action to_port(bit<9> port) {
        std.egress_spec = port;
        meta.chosen = (bit<16>) port;
    }
    table profile_table {
        key = { hdr.flow.service: exact; }
        actions = { choose; to_port; NoAction; }
        default_action = NoAction;
        implementation = profile;
        size = 64;
    }
    table selector_table {
        key = {
            hdr.flow.service: exact;
            hdr.flow.src: selector;
            hdr.flow.dst: selector;
            hdr.flow.src_port: selector;
            hdr.flow.dst_port: selector;
        }
        actions = { choose; to_port; NoAction; }
        default_action = NoAction;
        implementation = selector;
        size = 64;
    }
    table selector32_table {
        key = {
            hdr.flow.dst: lpm;
            hdr.flow.src: selector;
            hdr.flow.src_port: selector;
        }
        actions = { choose; NoAction; }
        default_action = NoAction;
        implementation = selector32;
        size = 64;
    }

    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.flow.isValid()) {
            hdr.choice.setValid();
            meta.chosen = 0xFFFF;
            profile_table.apply();
            hdr.choice.profile = meta.chosen;
            meta.chosen = 0xFFFF;
            selector_table.apply();
            hdr.choice.selector = meta.chosen;
            meta.chosen = 0xFFFF;
            selector32_table.apply();
            hdr.choice.selector32 = meta.chosen;
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
