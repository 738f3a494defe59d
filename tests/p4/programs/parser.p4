// The parser: select on values, masks, ranges and value sets; lookahead; header stacks; varbit; verify() and the
// parser's errors. Ingress reports what was found in a header in front of all others.
#include "base.p4"

error {
    BadVersion,
    BadLength
}

header report_t {
    bit<8> parser_error;     // 0 none, 1 too short, 2 no match, 3 stack, 4 header too short, 5 and 6 the program's own
    bit<8> valid;            // one bit per header found
    bit<8> labels;           // depth of the label stack
    bit<8> path;             // which branch of the first select was taken
    bit<32> last_label;
}

header vlan_t {
    bit<3> pcp;
    bit<1> dei;
    bit<12> vid;
    bit<16> ethertype;
}

header label_t {
    bit<20> label;
    bit<3> tc;
    bit<1> bottom;
    bit<8> ttl;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> dscp;
    bit<16> total_length;
    bit<16> id;
    bit<3> flags;
    bit<13> offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header options_t {
    varbit<320> data;
}

header ports_t {
    bit<16> src;
    bit<16> dst;
}

header ipv6_t {
    bit<4> version;
    bit<8> class;
    bit<20> label;
    bit<16> length;
    bit<8> next;
    bit<8> hops;
    bit<128> src;
    bit<128> dst;
}

header tlv_t {
    bit<8> kind;
    bit<8> length;
    varbit<128> value;
}

header marker_t {
    bit<16> value;
}

struct tlv_peek_t {
    bit<8> kind;
    bit<8> length;
}

struct metadata_t {
    bit<8> path;
}

struct headers_t {
    report_t report;
    ethernet_t ethernet;
    vlan_t[2] vlan;
    label_t[3] labels;
    ipv4_t ipv4;
    options_t options;
    ipv6_t ipv6;
    ports_t ports;
    tlv_t[2] tlv;
    marker_t marker;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) trusted;

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            FENCE: accept;
            0x0800: ipv4;
            0x86DD: ipv6;
            0x8100 &&& 0xEFFF: vlan;
            0x8847: label;
            0x9000..0x90FF: ranged;
            0x9200: skip;
            0x9201: tlv;
            trusted: marked;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan.next);
        transition select(hdr.vlan.last.ethertype, hdr.vlan.last.vid) {
            (0x8100 &&& 0xEFFF, _): vlan;
            (0x0800, 1..100): ipv4;
            (0x0800, _): vlan_other;
            (0x8847, 0 &&& 1): label;
            default: accept;
        }
    }
    state vlan_other {
        meta.path = 9;
        transition ipv4;
    }
    state label {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.bottom) {
            0: label;
            1: below_labels;
        }
    }
    state below_labels {
        transition select(packet.lookahead<bit<4>>()) {
            4: ipv4;
            6: ipv6;
            default: accept;
        }
    }
    state ipv4 {
        meta.path = meta.path + 1;
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4, error.BadVersion);
        verify(hdr.ipv4.ihl >= 5, error.BadLength);
        transition select(hdr.ipv4.ihl) {
            5: transport;
            default: options;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>)(bit<10>)(hdr.ipv4.ihl - 5) << 5);
        transition transport;
    }
    state transport {
        transition select(hdr.ipv4.offset, hdr.ipv4.protocol) {
            (0, 6): ports;
            (0, 17): ports;
            default: accept;
        }
    }
    state ipv6 {
        meta.path = 2;
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.src[127:112], hdr.ipv6.next) {
            (0xFE80 &&& 0xFFC0, 17): ports;
            (0x2001, 6 &&& 0xFE): ports;
            default: accept;
        }
    }
    state ports {
        packet.extract(hdr.ports);
        transition accept;
    }
    state ranged {
        meta.path = 3;
        transition select(hdr.ethernet.ethertype[7:0]) {
            0..15: marked;
            16 &&& 0xF0: accept;
            0x80..0xFF: reject;
        }
    }
    state skip {
        meta.path = 4;
        packet.advance(24);
        transition marked;
    }
    state tlv {
        meta.path = 5;
        transition select(packet.lookahead<tlv_peek_t>().length) {
            0..16: take_tlv;
            default: accept;
        }
    }
    state take_tlv {
        packet.extract(hdr.tlv.next, (bit<32>) packet.lookahead<tlv_peek_t>().length << 3);
        transition select(hdr.tlv.last.kind) {
            0: accept;
            default: tlv;
        }
    }
    state marked {
        packet.extract(hdr.marker);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        hdr.report.setValid();
        hdr.report.path = meta.path;
        hdr.report.labels = 0;
        hdr.report.last_label = 0;
        hdr.report.valid = 0;
        if (std.parser_error == error.NoError) {
            hdr.report.parser_error = 0;
        } else if (std.parser_error == error.PacketTooShort) {
            hdr.report.parser_error = 1;
        } else if (std.parser_error == error.NoMatch) {
            hdr.report.parser_error = 2;
        } else if (std.parser_error == error.StackOutOfBounds) {
            hdr.report.parser_error = 3;
        } else if (std.parser_error == error.HeaderTooShort) {
            hdr.report.parser_error = 4;
        } else if (std.parser_error == error.BadVersion) {
            hdr.report.parser_error = 5;
        } else if (std.parser_error == error.BadLength) {
            hdr.report.parser_error = 6;
        } else {
            hdr.report.parser_error = 255;
        }
        if (hdr.vlan[0].isValid()) { hdr.report.valid = hdr.report.valid | 1; }
        if (hdr.vlan[1].isValid()) { hdr.report.valid = hdr.report.valid | 2; }
        if (hdr.ipv4.isValid()) { hdr.report.valid = hdr.report.valid | 4; }
        if (hdr.options.isValid()) { hdr.report.valid = hdr.report.valid | 8; }
        if (hdr.ipv6.isValid()) { hdr.report.valid = hdr.report.valid | 16; }
        if (hdr.ports.isValid()) { hdr.report.valid = hdr.report.valid | 32; }
        if (hdr.tlv[0].isValid()) { hdr.report.valid = hdr.report.valid | 64; }
        if (hdr.marker.isValid()) { hdr.report.valid = hdr.report.valid | 128; }
        if (hdr.labels[0].isValid()) {
            hdr.report.labels = 1;
            hdr.report.last_label = (bit<32>) hdr.labels[0].label;
        }
        if (hdr.labels[1].isValid()) {
            hdr.report.labels = 2;
            hdr.report.last_label = (bit<32>) hdr.labels[1].label;
        }
        if (hdr.labels[2].isValid()) {
            hdr.report.labels = 3;
            hdr.report.last_label = (bit<32>) hdr.labels[2].label;
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
