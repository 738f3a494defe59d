// Header stacks in the controls: push, pop, index, copies, validity of single elements, assignment of whole headers.
#include "base.p4"

header command_t {
    bit<8> op;
    bit<8> argument;
}

header item_t {
    bit<7> value;
    bit<1> last;
    bit<16> extra;
}

struct metadata_t {
    item_t spare;
}

struct headers_t {
    ethernet_t ethernet;
    command_t command;
    item_t[4] items;
    item_t single;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9300: command;
            default: accept;
        }
    }
    state command {
        packet.extract(hdr.command);
        transition item;
    }
    state item {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.last) {
            1: accept;
            default: item;
        }
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.command.isValid()) {
            if (hdr.command.op == 1) {
                hdr.items.push_front(1);
                hdr.items[0].setValid();
                hdr.items[0].value = hdr.command.argument[6:0];
                hdr.items[0].last = 0;
                hdr.items[0].extra = 0xABCD;
            } else if (hdr.command.op == 2) {
                hdr.items.pop_front(1);
            } else if (hdr.command.op == 3) {
                hdr.items.push_front(2);
                hdr.items[1] = { 5, 0, 0x5555 };
            } else if (hdr.command.op == 4) {
                hdr.items.pop_front(3);
            } else if (hdr.command.op == 5) {
                hdr.items[2] = hdr.items[0];
            } else if (hdr.command.op == 6) {
                hdr.items[1].setInvalid();
            } else if (hdr.command.op == 7) {
                hdr.single.setValid();
                hdr.single = hdr.items[1];
            } else if (hdr.command.op == 8) {
                meta.spare = hdr.items[0];
                hdr.items[0] = hdr.items[1];
                hdr.items[1] = meta.spare;
            } else if (hdr.command.op == 9) {
                hdr.single.setValid();
                hdr.single.value = 1;
                hdr.single.setValid();
            } else if (hdr.command.op == 10) {
                if (hdr.items[3].isValid()) {
                    hdr.command.argument = 4;
                } else if (hdr.items[2].isValid()) {
                    hdr.command.argument = 3;
                } else {
                    hdr.command.argument = 0;
                }
            } else if (hdr.command.op == 11) {
                hdr.items.push_front(4);
            }
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
