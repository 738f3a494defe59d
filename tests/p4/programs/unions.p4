// Header unions and stacks of them; varbit fields compared and copied; a header chosen by a condition; stack
// operations in the parser.
#include "base.p4"

header short_t {
    bit<8> kind;
    bit<8> value;
}

header long_t {
    bit<8> kind;
    bit<24> value;
}

header text_t {
    bit<8> kind;
    bit<8> length;
    varbit<128> data;
}

header_union option_t {
    short_t brief;
    long_t wide;
}

header command_t {
    bit<8> op;
    bit<8> argument;
}

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    command_t command;
    option_t single;
    option_t[3] options;
    text_t first;
    text_t second;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0xA400: command;
            default: accept;
        }
    }
    state command {
        packet.extract(hdr.command);
        transition select(packet.lookahead<bit<8>>()) {
            1: single_short;
            2: single_long;
            default: option;
        }
    }
    state single_short {
        packet.extract(hdr.single.brief);
        transition option;
    }
    state single_long {
        packet.extract(hdr.single.wide);
        transition option;
    }
    state option {
        transition select(packet.lookahead<bit<8>>()) {
            3: option_short;
            4: option_long;
            5: texts;
            default: accept;
        }
    }
    state option_short {
        packet.extract(hdr.options.next.brief);
        transition option;
    }
    state option_long {
        packet.extract(hdr.options.next.wide);
        transition option;
    }
    state texts {
        packet.extract(hdr.first, (bit<32>) packet.lookahead<bit<16>>()[4:0] << 3);
        packet.extract(hdr.second, (bit<32>) packet.lookahead<bit<16>>()[4:0] << 3);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (!hdr.command.isValid()) {
            return;
        }
        if (hdr.command.op == 1) {
            // Making one member of a union valid makes the others invalid.
            if (hdr.single.brief.isValid()) {
                hdr.single.wide.setValid();
                hdr.single.wide.kind = 2;
                hdr.single.wide.value = (bit<24>) hdr.command.argument;
            } else if (hdr.single.wide.isValid()) {
                hdr.single.brief.setValid();
                hdr.single.brief.kind = 1;
                hdr.single.brief.value = hdr.command.argument;
            }
        } else if (hdr.command.op == 2) {
            hdr.single.brief.setInvalid();
        } else if (hdr.command.op == 3) {
            if (hdr.options[0].brief.isValid()) {
                hdr.options[0].brief.value = hdr.options[0].brief.value + hdr.command.argument;
            }
            if (hdr.options[1].wide.isValid()) {
                hdr.options[1].wide.value = hdr.options[1].wide.value + (bit<24>) hdr.command.argument;
            }
        } else if (hdr.command.op == 4) {
            if (hdr.first.isValid() && hdr.second.isValid()) {
                if (hdr.first == hdr.second) {
                    hdr.command.argument = 1;
                } else {
                    hdr.command.argument = 0;
                }
            }
        } else if (hdr.command.op == 5) {
            if (hdr.first.isValid()) {
                hdr.second = hdr.first;
            }
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
