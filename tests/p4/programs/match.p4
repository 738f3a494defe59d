// Every match kind, alone and mixed, narrow and wide; const entries, const and settable default actions; hit, miss
// and switch(action_run). Each table marks the result header in its own byte.
#include "base.p4"

header keys_t {
    bit<16> exact;
    bit<32> lpm;
    bit<32> ternary;
    bit<16> range;
    bit<16> optional;
    bit<128> address;
    bit<256> wide;
    bit<5> narrow;
    bit<1> flag;
    bit<10> odd;
    bit<129> long;
    bit<7> pad;
}

header result_t {
    bit<8> exact;
    bit<8> lpm;
    bit<8> ternary;
    bit<8> range;
    bit<8> optional;
    bit<8> mixed;
    bit<8> mixed_lpm;
    bit<8> address;
    bit<8> address_ternary;
    bit<8> wide;
    bit<8> odd;
    bit<8> constant;
    bit<8> constant_range;
    bit<8> keyless;
    bit<8> flow;             // bits of hit, miss and action_run
    bit<8> valid_key;
    bit<8> long;
    bit<128> data;           // a wide action parameter
}

struct metadata_t {
    bit<8> value;
}

struct headers_t {
    ethernet_t ethernet;
    keys_t keys;
    result_t result;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9400: keys;
            default: accept;
        }
    }
    state keys {
        packet.extract(hdr.keys);
        transition accept;
    }
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action set(bit<8> value) { meta.value = value; }
    action add(bit<8> value) { meta.value = meta.value + value; }
    action set_wide(bit<8> value, bit<128> data) {
        meta.value = value;
        hdr.result.data = data;
    }
    action nothing() {}

    table exact_table {
        key = { hdr.keys.exact: exact; }
        actions = { set; add; nothing; }
        default_action = nothing;
        size = 256;
    }
    table lpm_table {
        key = { hdr.keys.lpm: lpm; }
        actions = { set; nothing; }
        default_action = set(250);
        size = 256;
    }
    table ternary_table {
        key = { hdr.keys.ternary: ternary; hdr.keys.exact: ternary; }
        actions = { set; nothing; }
        const default_action = set(251);
        size = 256;
    }
    table range_table {
        key = { hdr.keys.range: range; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table optional_table {
        key = { hdr.keys.optional: optional; hdr.keys.exact: optional; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table mixed_table {
        key = {
            hdr.keys.exact: exact;
            hdr.keys.lpm: lpm;
            hdr.keys.ternary: ternary;
            hdr.keys.range: range;
            hdr.keys.optional: optional;
        }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table mixed_lpm_table {
        key = { hdr.keys.exact: exact; hdr.keys.lpm: lpm; hdr.keys.flag: exact; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table address_table {
        key = { hdr.keys.address: lpm; }
        actions = { set_wide; nothing; }
        default_action = nothing;
        size = 256;
    }
    table address_ternary_table {
        key = { hdr.keys.address: ternary; hdr.keys.narrow: exact; }
        actions = { set_wide; nothing; }
        default_action = nothing;
        size = 256;
    }
    table long_table {
        key = { hdr.keys.long: exact; hdr.keys.address: lpm; hdr.keys.narrow: exact; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table wide_table {
        key = { hdr.keys.wide: exact; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table odd_table {
        key = { hdr.keys.odd: range; hdr.keys.narrow: ternary; hdr.keys.flag: exact; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 256;
    }
    table constant_table {
        key = { hdr.keys.exact: ternary; hdr.keys.lpm: lpm; }
        actions = { set; nothing; }
        const default_action = nothing;
        const entries = {
            (0x1234, 0x0A000000 &&& 0xFF000000): set(1);
            (0x1200 &&& 0xFF00, 0x0A000000 &&& 0xFF000000): set(2);
            (_, 0x0A0A0000 &&& 0xFFFF0000): set(3);
            (0x0001 &&& 0x0001, _): set(4);
        }
    }
    table constant_range_table {
        key = { hdr.keys.range: range; hdr.keys.exact: exact; }
        actions = { set; nothing; }
        const default_action = set(200);
        const entries = {
            (1..10, 7): set(1);
            (5..20, 7): set(2);
            (_, 8): set(3);
            (65535, 7): set(4);
        }
    }
    table keyless_table {
        actions = { set; nothing; }
        default_action = set(77);
    }
    table valid_table {
        key = { hdr.keys.isValid(): exact; std.ingress_port: exact; }
        actions = { set; nothing; }
        default_action = nothing;
        size = 16;
    }

    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        hdr.result.setValid();
        hdr.result.flow = 0;
        hdr.result.data = 0;
        hdr.result.exact = 0;
        hdr.result.lpm = 0;
        hdr.result.ternary = 0;
        hdr.result.range = 0;
        hdr.result.optional = 0;
        hdr.result.mixed = 0;
        hdr.result.mixed_lpm = 0;
        hdr.result.address = 0;
        hdr.result.address_ternary = 0;
        hdr.result.wide = 0;
        hdr.result.odd = 0;
        hdr.result.constant = 0;
        hdr.result.constant_range = 0;
        hdr.result.keyless = 0;
        hdr.result.valid_key = 0;
        hdr.result.long = 0;
        meta.value = 0;
        valid_table.apply();
        hdr.result.valid_key = meta.value;
        if (hdr.keys.isValid()) {
            meta.value = 1;
            switch (exact_table.apply().action_run) {
                set: { hdr.result.flow = hdr.result.flow | 1; }
                add: { hdr.result.flow = hdr.result.flow | 2; }
                default: { hdr.result.flow = hdr.result.flow | 4; }
            }
            hdr.result.exact = meta.value;
            meta.value = 0;
            if (lpm_table.apply().hit) { hdr.result.flow = hdr.result.flow | 8; }
            hdr.result.lpm = meta.value;
            meta.value = 0;
            if (ternary_table.apply().miss) { hdr.result.flow = hdr.result.flow | 16; }
            hdr.result.ternary = meta.value;
            meta.value = 0;
            if (!range_table.apply().hit) {
                hdr.result.flow = hdr.result.flow | 32;
            } else {
                hdr.result.flow = hdr.result.flow | 64;
            }
            hdr.result.range = meta.value;
            meta.value = 0;
            optional_table.apply();
            hdr.result.optional = meta.value;
            meta.value = 0;
            mixed_table.apply();
            hdr.result.mixed = meta.value;
            meta.value = 0;
            mixed_lpm_table.apply();
            hdr.result.mixed_lpm = meta.value;
            meta.value = 0;
            address_table.apply();
            hdr.result.address = meta.value;
            meta.value = 0;
            address_ternary_table.apply();
            hdr.result.address_ternary = meta.value;
            meta.value = 0;
            wide_table.apply();
            hdr.result.wide = meta.value;
            meta.value = 0;
            long_table.apply();
            hdr.result.long = meta.value;
            meta.value = 0;
            odd_table.apply();
            hdr.result.odd = meta.value;
            meta.value = 0;
            switch (constant_table.apply().action_run) {
                set: { hdr.result.flow = hdr.result.flow | 128; }
            }
            hdr.result.constant = meta.value;
            meta.value = 0;
            constant_range_table.apply();
            hdr.result.constant_range = meta.value;
            meta.value = 0;
            keyless_table.apply();
            hdr.result.keyless = meta.value;
        }
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
