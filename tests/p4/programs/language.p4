// What lies between the operators: slices read and written, concatenation, casts, structs, enums, functions, actions
// with directions, nested controls, early return and exit, local variables, log messages.
#include "base.p4"

enum bit<8> Kind {
    SLICES = 1,
    CONCAT = 2,
    CASTS = 3,
    COPY = 4,
    CALLS = 5,
    RETURN = 6,
    EXIT = 7,
    SWAP = 8,
    SWITCH_VALUE = 9
}

header input_t {
    Kind kind;
    bit<8> n;
    bit<64> x;
    bit<128> y;
}

header output_t {
    bit<64> x;
    bit<128> y;
    bit<32> z;
}

header other_t {
    bit<4> a;
    bit<12> b;
    bit<1> c;
    bit<7> d;
}

struct pair_t {
    bit<64> first;
    bit<64> second;
}

struct metadata_t {
    pair_t pair;
    pair_t copied;
    bool seen;
    bit<3> odd;
}

struct headers_t {
    ethernet_t ethernet;
    input_t input;
    other_t first;
    other_t second;
    output_t output;
}

bit<64> rotate(in bit<64> value) {
    return value[62:0] ++ value[63:63];
}

bit<32> clamp(in bit<32> value, in bit<32> low, in bit<32> high) {
    if (value < low) {
        return low;
    }
    if (value > high) {
        return high;
    }
    return value;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        meta.seen = false;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9B00: input;
            default: accept;
        }
    }
    state input {
        meta.seen = true;
        packet.extract(hdr.input);
        packet.extract(hdr.first);
        packet.extract(hdr.second);
        transition accept;
    }
}

EMPTY_VERIFY

control Mixer(inout bit<64> x, in bit<128> y, out bit<32> z) {
    apply {
        x = x ^ y[63:0];
        z = (bit<32>) y[127:96] + 1;
        if (y[0:0] == 1) {
            return;
        }
        z = z << 1;
    }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    Mixer() mixer;
    bit<32> local;

    action bump(inout bit<64> value, in bit<64> amount, out bit<32> low) {
        value = value + amount;
        low = value[31:0];
    }

    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        if (!hdr.second.isValid()) {
            return;
        }
        log_msg("input {} {}", {hdr.input.n, hdr.input.x});
        hdr.output.setValid();
        hdr.output.x = hdr.input.x;
        hdr.output.y = hdr.input.y;
        hdr.output.z = 0;
        local = (bit<32>) hdr.input.n;
        if (hdr.input.kind == Kind.SLICES) {
            hdr.output.x[15:8] = hdr.input.n;
            hdr.output.x[63:60] = hdr.input.y[3:0];
            hdr.output.y[100:37] = hdr.input.x;
            hdr.output.z = hdr.input.y[95:64];
            hdr.output.z[0:0] = hdr.input.x[63:63];
        } else if (hdr.input.kind == Kind.CONCAT) {
            hdr.output.y = hdr.input.x ++ hdr.input.n ++ hdr.input.x[47:0] ++ 8w0x5A;
            hdr.output.x = hdr.input.y[31:0] ++ hdr.input.y[127:96];
            hdr.output.z = hdr.first.a ++ hdr.second.b ++ hdr.first.c ++ hdr.second.d ++ 8w1;
        } else if (hdr.input.kind == Kind.CASTS) {
            hdr.output.x = (bit<64>) hdr.input.y;
            hdr.output.y = (bit<128>) (int<128>) (int<64>) hdr.input.x;
            hdr.output.z = (bit<32>) (bit<1>) meta.seen + (bit<32>) (bit<3>) hdr.input.n;
            meta.odd = (bit<3>) hdr.input.n + 5;
            hdr.output.z[31:29] = meta.odd;
        } else if (hdr.input.kind == Kind.COPY) {
            meta.pair = { hdr.input.x, hdr.input.y[63:0] };
            meta.copied = meta.pair;
            meta.pair.first = 0;
            hdr.output.x = meta.copied.second;
            hdr.output.y = meta.pair.first ++ meta.copied.first;
            hdr.second = hdr.first;
            hdr.first.setInvalid();
        } else if (hdr.input.kind == Kind.CALLS) {
            hdr.output.x = rotate(rotate(hdr.input.x));
            hdr.output.z = clamp(hdr.input.y[31:0], 1000, 100000);
            bump(hdr.output.x, hdr.input.y[127:64], local);
            mixer.apply(hdr.output.x, hdr.input.y, hdr.output.z);
            hdr.output.y[31:0] = local;
        } else if (hdr.input.kind == Kind.RETURN) {
            if (hdr.input.n < 100) {
                hdr.output.z = 1;
                return;
            }
            hdr.output.z = 2;
        } else if (hdr.input.kind == Kind.EXIT) {
            if (hdr.input.n == 9) {
                mark_to_drop(std);
                exit;
            }
            hdr.output.z = local;
        } else if (hdr.input.kind == Kind.SWAP) {
            bit<12> held = hdr.first.b;
            hdr.first.b = hdr.second.b;
            hdr.second.b = held;
            hdr.first.a = ~hdr.first.a;
            hdr.second.c = hdr.first.c ^ 1;
            hdr.ethernet.dst = hdr.ethernet.src;
            hdr.output.setInvalid();
        } else if (hdr.input.kind == Kind.SWITCH_VALUE) {
            switch (hdr.input.n) {
                1: { hdr.output.z = 10; }
                2:
                3: { hdr.output.z = 20; }
                default: { hdr.output.z = 30; }
            }
        }
        hdr.input.n = hdr.input.n + 1;
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_EGRESS
        if (hdr.output.isValid() && meta.seen) {
            hdr.output.z[31:31] = 1;
        }
    }
}

EMPTY_UPDATE
DEPARSE_ALL
SWITCH
