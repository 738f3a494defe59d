// Meters by packets and by bytes, indexed and direct. The colours are written into the packet.
#include "base.p4"

header colours_t {
    bit<8> index;
    bit<8> packets;
    bit<8> bytes;
    bit<8> direct;
}

struct metadata_t {
    bit<8> colour;
    bit<2> direct_colour;
}

struct headers_t {
    ethernet_t ethernet;
    colours_t colours;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9D00: colours;
            default: accept;
        }
    }
    state colours {
        packet.extract(hdr.colours);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    meter(256, MeterType.packets) packets;
    meter(256, MeterType.bytes) bytes;
    direct_meter<bit<2>>(MeterType.packets) direct;

    action metered(bit<8> mark) {
        direct.read(meta.direct_colour);
        hdr.colours.index = mark;
    }
    table metered_table {
        key = { hdr.colours.index: exact; }
        actions = { metered; NoAction; }
        default_action = NoAction;
        meters = direct;
        size = 16;
    }

    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (hdr.colours.isValid()) {
            meta.direct_colour = 3;
            packets.execute_meter((bit<32>) hdr.colours.index, hdr.colours.packets);
            bytes.execute_meter((bit<32>) hdr.colours.index, meta.colour);
            hdr.colours.bytes = meta.colour;
            metered_table.apply();
            hdr.colours.direct = (bit<8>) meta.direct_colour;
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
