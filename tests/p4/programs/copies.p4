// Headers kept in metadata, with varbit and without, and in local variables. The payload
// begins with a command {opcode: 8, length: 8}, then as many bytes of data: see the opcodes.
#include "base.p4"

header command_t {
    bit<8> opcode;
    bit<8> length;
    varbit<320> data;
}

header pair_t {
    bit<4> high;
    bit<12> low;
    bit<128> wide;
}

// Never in a packet, only in metadata.
header note_t {
    bit<8> value;
    bit<8> times;
}

header report_t {
    bit<8> valid;
    bit<8> value;
    bit<16> low;
}

struct headers_t {
    report_t report;
    ethernet_t ethernet;
    command_t command;
    command_t again;
    pair_t pair;
    pair_t twin;
}

struct metadata_t {
    command_t command;
    pair_t pair;
    note_t note;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9500: command;
            default: accept;
        }
    }
    state command {
        packet.extract(hdr.command, (bit<32>)packet.lookahead<bit<16>>()[7:0] << 3);
        transition select(hdr.command.opcode) {
            0x80 &&& 0x80: pair;
            default: accept;
        }
    }
    state pair {
        packet.extract(hdr.pair);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action tell() {
        hdr.report.setValid();
        hdr.report.valid = (bit<1>)meta.command.isValid() ++ (bit<1>)meta.pair.isValid()
                           ++ (bit<1>)meta.note.isValid() ++ 5w0;
        hdr.report.value = meta.note.value;
        hdr.report.low = 4w0 ++ meta.pair.low;
    }
    action keep() {
        meta.command = hdr.command;
        meta.pair = hdr.pair;
    }
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        varbit<320> data;
        if (hdr.command.isValid()) {
            keep();
            data = hdr.command.data;
            if (hdr.pair.isValid()) {
                data = meta.command.data;
                hdr.command.setInvalid();
            }
            meta.note.setValid();
            meta.note.value = hdr.command.opcode;
            bit<8> what = hdr.command.opcode & 0x7f;
            if (what == 0) {            // nothing is done with the copies
                tell();
            } else if (what == 1) {     // a second command, and a twin of the pair
                hdr.again = meta.command;
                hdr.twin = meta.pair;
            } else if (what == 2) {     // the original is changed, the copy not
                hdr.command.setInvalid();
                hdr.pair.setInvalid();
                hdr.again = meta.command;
                hdr.twin = meta.pair;
            } else if (what == 3) {     // through a local variable
                command_t local = meta.command;
                local.opcode = 0x55;
                hdr.again = local;
            } else if (what == 4) {     // the varbit alone
                hdr.again.setValid();
                hdr.again.opcode = 0x44;
                hdr.again.length = hdr.command.length;
                hdr.again.data = data;
            } else if (what == 5) {     // fields of a copy
                meta.pair.wide = meta.pair.wide + 1;
                meta.pair.low = meta.pair.low ^ 0x0f0;
                meta.pair.high = 9;
                hdr.twin = meta.pair;
            } else {
                tell();
            }
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
