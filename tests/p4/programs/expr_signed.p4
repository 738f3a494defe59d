// The operators on int<W>: wrap-around and saturating arithmetic, arithmetic shifts, comparisons, and casts that
// extend the sign. The packet's EtherType chooses the width: 0x9800 + W.
#include "base.p4"

#define SIGNED(W, PAD)                                            \
    header operands##W##_t {                                      \
        int<W> a; bit<PAD> pad_a;                                 \
        int<W> b; bit<PAD> pad_b;                                 \
        bit<8> shift;                                             \
    }                                                             \
    header results##W##_t {                                       \
        int<W> add; bit<PAD> pad0;                                \
        int<W> sub; bit<PAD> pad1;                                \
        int<W> neg; bit<PAD> pad2;                                \
        int<W> not_; bit<PAD> pad3;                               \
        int<W> and_; bit<PAD> pad4;                               \
        int<W> shl; bit<PAD> pad5;                                \
        int<W> shr; bit<PAD> pad6;                                \
        int<W> add_sat; bit<PAD> pad7;                            \
        int<W> sub_sat; bit<PAD> pad8;                            \
        int<W> max; bit<PAD> pad9;                                \
        bit<W> unsigned_; bit<PAD> pad10;                         \
        bit<W> unsigned_shr; bit<PAD> pad11;                      \
        bit<1> eq; bit<1> lt; bit<1> le; bit<1> gt; bit<1> ge; bit<1> negative; bit<2> pad12; \
        int<200> extended;                                        \
        bit<200> zero_extended;                                   \
        int<5> narrowed; bit<3> pad13;                            \
    }

#define COMPUTE(W, PAD)                                           \
    if (hdr.o##W.isValid()) {                                     \
        hdr.r##W.setValid();                                      \
        hdr.r##W.add = hdr.o##W.a + hdr.o##W.b;                   \
        hdr.r##W.sub = hdr.o##W.a - hdr.o##W.b;                   \
        hdr.r##W.neg = -hdr.o##W.a;                               \
        hdr.r##W.not_ = ~hdr.o##W.a;                              \
        hdr.r##W.and_ = hdr.o##W.a & hdr.o##W.b;                  \
        hdr.r##W.shl = hdr.o##W.a << hdr.o##W.shift;              \
        hdr.r##W.shr = hdr.o##W.a >> hdr.o##W.shift;              \
        hdr.r##W.add_sat = hdr.o##W.a |+| hdr.o##W.b;             \
        hdr.r##W.sub_sat = hdr.o##W.a |-| hdr.o##W.b;             \
        hdr.r##W.max = hdr.o##W.a > hdr.o##W.b ? hdr.o##W.a : hdr.o##W.b; \
        hdr.r##W.unsigned_ = (bit<W>) (hdr.o##W.a - hdr.o##W.b);  \
        hdr.r##W.unsigned_shr = (bit<W>) hdr.o##W.a >> hdr.o##W.shift; \
        hdr.r##W.eq = (bit<1>) (hdr.o##W.a == hdr.o##W.b);        \
        hdr.r##W.lt = (bit<1>) (hdr.o##W.a < hdr.o##W.b);         \
        hdr.r##W.le = (bit<1>) (hdr.o##W.a <= hdr.o##W.b);        \
        hdr.r##W.gt = (bit<1>) (hdr.o##W.a > hdr.o##W.b);         \
        hdr.r##W.ge = (bit<1>) (hdr.o##W.a >= hdr.o##W.b);        \
        hdr.r##W.negative = (bit<1>) (hdr.o##W.a < 0);            \
        hdr.r##W.extended = (int<200>) hdr.o##W.a;                \
        hdr.r##W.zero_extended = (bit<200>) (bit<W>) hdr.o##W.a;  \
        hdr.r##W.narrowed = (int<5>) hdr.o##W.a;                  \
    }

#define EXTRACT(W) state operands##W { packet.extract(hdr.o##W); transition accept; }

SIGNED(8, 8)
SIGNED(13, 3)
SIGNED(32, 8)
SIGNED(33, 7)
SIGNED(64, 8)
SIGNED(100, 4)
SIGNED(128, 8)

struct metadata_t {}

struct headers_t {
    ethernet_t ethernet;
    operands8_t o8;
    operands13_t o13;
    operands32_t o32;
    operands33_t o33;
    operands64_t o64;
    operands100_t o100;
    operands128_t o128;
    results8_t r8;
    results13_t r13;
    results32_t r32;
    results33_t r33;
    results64_t r64;
    results100_t r100;
    results128_t r128;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x9808: operands8;
            0x980D: operands13;
            0x9820: operands32;
            0x9821: operands33;
            0x9840: operands64;
            0x9864: operands100;
            0x9880: operands128;
            default: accept;
        }
    }
    EXTRACT(8)
    EXTRACT(13)
    EXTRACT(32)
    EXTRACT(33)
    EXTRACT(64)
    EXTRACT(100)
    EXTRACT(128)
}

EMPTY_VERIFY

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        COMPUTE(8, 8)
        COMPUTE(13, 3)
        COMPUTE(32, 8)
        COMPUTE(33, 7)
        COMPUTE(64, 8)
        COMPUTE(100, 4)
        COMPUTE(128, 8)
    }
}

EMPTY_EGRESS
EMPTY_UPDATE
DEPARSE_ALL
SWITCH
