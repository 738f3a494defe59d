// Copies of packets: clone from ingress and from egress with preserved fields, multicast, resubmit, recirculate,
// truncate; with the standard metadata that tells the copies apart.
#include "base.p4"

header command_t {
    bit<8> op;               // bits: 1 clone ingress, 2 clone egress, 4 multicast, 8 resubmit, 16 recirculate,
                             // 32 truncate, 64 drop in ingress, 128 drop in egress
    bit<16> group;           // clone session or multicast group
    bit<16> argument;        // length to truncate to, or rounds to go
}

header report_t {
    bit<32> instance_type;
    bit<9> ingress_port;
    bit<9> egress_port;
    bit<16> rid;
    bit<14> rounds;
    bit<32> packet_length;
    bit<16> kept;
    bit<16> lost;
    bit<32> ingress_length;
}

struct metadata_t {
    @field_list(1, 2, 3)
    bit<16> kept;
    @field_list(3)
    bit<14> rounds;
    @field_list(3)
    bit<9> port;             // the ingress port itself is not kept
    bit<16> lost;
    @field_list(1)
    bit<32> ingress_length;
    @field_list(4)
    bit<8> egress_mark;
}

struct headers_t {
    ethernet_t ethernet;
    command_t command;
    report_t report;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0xA000: command;
            default: accept;
        }
    }
    state command {
        packet.extract(hdr.command);
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
        if (std.instance_type == 4) {                                   // recirculated
            std.egress_spec = meta.port;
            meta.rounds = meta.rounds + 1;
            meta.ingress_length = std.packet_length;
            return;
        }
        meta.lost = 0x7777;
        meta.ingress_length = std.packet_length;
        if (std.instance_type == 6) {                                   // resubmitted
            std.egress_spec = meta.port;
            meta.rounds = meta.rounds + 1;
            if ((bit<16>) meta.rounds < hdr.command.argument) {
                resubmit_preserving_field_list(3);
            }
            return;
        }
        meta.kept = hdr.ethernet.src[15:0];
        meta.port = std.ingress_port;
        if (hdr.command.op & 1 != 0) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.command.group, 1);
        }
        if (hdr.command.op & 4 != 0) {
            std.mcast_grp = hdr.command.group;
        }
        if (hdr.command.op & 8 != 0) {
            resubmit_preserving_field_list(3);
        }
        if (hdr.command.op & 32 != 0) {
            truncate((bit<32>) hdr.command.argument);
        }
        if (hdr.command.op & 64 != 0) {
            mark_to_drop(std);
        }
        hdr.ethernet.dst[7:0] = 0xEE;                                   // a clone from ingress does not show this
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_EGRESS
        if (!hdr.command.isValid()) {
            return;
        }
        if (hdr.command.op & 2 != 0 && std.instance_type == 0) {
            meta.egress_mark = 9;
            clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.command.group, 2);
        }
        if (hdr.command.op & 16 != 0 && std.instance_type != 1 && std.instance_type != 2
            && (bit<16>) meta.rounds < hdr.command.argument) {
            recirculate_preserving_field_list(3);
        }
        if (hdr.command.op & 128 != 0) {
            mark_to_drop(std);
        }
        hdr.report.setValid();
        hdr.report.instance_type = std.instance_type;
        hdr.report.ingress_port = std.ingress_port;
        hdr.report.egress_port = std.egress_port;
        hdr.report.rid = std.egress_rid;
        hdr.report.rounds = meta.rounds;
        hdr.report.packet_length = std.packet_length;
        hdr.report.kept = meta.kept;
        hdr.report.lost = meta.lost;
        hdr.report.ingress_length = meta.ingress_length;
    }
}

EMPTY_UPDATE
DEPARSE_ALL
SWITCH
