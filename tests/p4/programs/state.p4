// Registers (read-modify-write, several widths), indexed counters of all three kinds, direct counters.
#include "base.p4"

header command_t {
    bit<8> op;               // 0 nothing, 1 add, 2 set, 3 exchange
    bit<8> index;
    bit<128> value;
    bit<128> before;         // what the register held
}

struct metadata_t {
    bit<128> wide;
    bit<64> middle;
    bit<9> odd;
    bit<1> one;
}

struct headers_t {
    ethernet_t ethernet;
    command_t command;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9C00 &&& 0xFFF0: command;
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
    register<bit<128>>(16) wide;
    register<bit<64>>(16) middle;
    register<bit<9>>(16) odd;
    register<bit<1>>(16) one;
    counter(256, CounterType.packets) packets;
    counter(256, CounterType.bytes) bytes;
    counter(256, CounterType.packets_and_bytes) both;
    direct_counter(CounterType.packets_and_bytes) direct;
    direct_counter(CounterType.packets) direct_packets;

    action mark(bit<8> value) {
        direct.count();
        hdr.command.op = value;
    }
    action seen() { direct.count(); }
    table counted {
        key = { hdr.command.index: exact; }
        actions = { mark; seen; }
        default_action = seen;
        counters = direct;
        size = 64;
    }
    action pass() { direct_packets.count(); }
    table counted_ternary {
        key = { hdr.command.value: ternary; }
        actions = { pass; NoAction; }
        default_action = NoAction;
        counters = direct_packets;
        size = 64;
    }

    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (!hdr.command.isValid()) {
            return;
        }
        bit<32> index = (bit<32>) hdr.command.index;
        packets.count(index);
        bytes.count(index);
        both.count(index);
        if (hdr.ethernet.ethertype == 0x9C00) {
            @atomic {
                wide.read(meta.wide, index & 15);
                hdr.command.before = meta.wide;
                if (hdr.command.op == 1) {
                    meta.wide = meta.wide + hdr.command.value;
                } else if (hdr.command.op >= 2) {
                    meta.wide = hdr.command.value;
                }
                wide.write(index & 15, meta.wide);
            }
        } else if (hdr.ethernet.ethertype == 0x9C01) {
            middle.read(meta.middle, index & 15);
            hdr.command.before = (bit<128>) meta.middle;
            if (hdr.command.op == 1) {
                meta.middle = meta.middle |+| hdr.command.value[63:0];
            } else if (hdr.command.op >= 2) {
                meta.middle = hdr.command.value[63:0];
            }
            middle.write(index & 15, meta.middle);
        } else if (hdr.ethernet.ethertype == 0x9C02) {
            odd.read(meta.odd, index & 15);
            hdr.command.before = (bit<128>) meta.odd;
            if (hdr.command.op == 1) {
                meta.odd = meta.odd + hdr.command.value[8:0];
            } else if (hdr.command.op >= 2) {
                meta.odd = hdr.command.value[8:0];
            }
            odd.write(index & 15, meta.odd);
        } else if (hdr.ethernet.ethertype == 0x9C03) {
            one.read(meta.one, index & 15);
            hdr.command.before = (bit<128>) meta.one;
            one.write(index & 15, ~meta.one);
        } else if (hdr.ethernet.ethertype == 0x9C04) {
            // Two registers and a header field at once.
            middle.read(meta.middle, 0);
            odd.read(meta.odd, (bit<32>) meta.middle[3:0]);
            hdr.command.before = (bit<128>) meta.odd;
            middle.write(0, meta.middle + 1);
            odd.write((bit<32>) meta.middle[3:0], meta.odd + 3);
        }
        counted.apply();
        counted_ternary.apply();
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
