// What the compiler removes after it has written P4Info: a table in a branch that is never taken with its action and
// counter, and controller headers that no packet has. Also a key of type error, which has no width in P4Info.
#include "base.p4"

@controller_header("packet_in")
header packet_in_t {
    bit<9> port;
    bit<7> pad;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> port;
    bit<7> pad;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        verify(hdr.ethernet.ethertype != 0x1234, error.NoMatch);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets) of_never;
    action mark(bit<16> ethertype) {
        hdr.ethernet.ethertype = ethertype;
    }
    action gone(bit<8> x) {
        hdr.ethernet.src[7:0] = x;
    }
    table errors {
        key = { std.parser_error: exact @name("error"); }
        actions = { mark; @defaultonly NoAction; }
        default_action = NoAction;
        size = 16;
    }
    table never {
        key = { hdr.ethernet.src: exact @name("src"); }
        actions = { gone; NoAction; }
        counters = of_never;
    }
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        bit<8> which = 5;
        if (which == 6) {
            never.apply();
        }
        errors.apply();
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
