// Included by expr_*.p4: one header per width with two operands and what each operator makes of them.
// PAD bits fill the header up to whole bytes.

#define OPERANDS(W, PAD)                                          \
    header operands##W##_t {                                      \
        bit<W> a; bit<PAD> pad_a;                                 \
        bit<W> b; bit<PAD> pad_b;                                 \
        bit<8> shift;                                             \
    }                                                             \
    header results##W##_t {                                       \
        bit<W> add; bit<PAD> pad0;                                \
        bit<W> sub; bit<PAD> pad1;                                \
        bit<W> and_; bit<PAD> pad2;                               \
        bit<W> or_; bit<PAD> pad3;                                \
        bit<W> xor_; bit<PAD> pad4;                               \
        bit<W> not_; bit<PAD> pad5;                               \
        bit<W> neg; bit<PAD> pad6;                                \
        bit<W> shl; bit<PAD> pad7;                                \
        bit<W> shr; bit<PAD> pad8;                                \
        bit<W> add_sat; bit<PAD> pad9;                            \
        bit<W> sub_sat; bit<PAD> pad10;                           \
        bit<W> mux; bit<PAD> pad11;                               \
        bit<W> nested; bit<PAD> pad12;                            \
        bit<1> eq; bit<1> ne; bit<1> lt; bit<1> le; bit<1> gt; bit<1> ge; bit<2> logic; \
    }

#define COMPUTE(W, PAD)                                           \
    if (hdr.o##W.isValid()) {                                     \
        hdr.r##W.setValid();                                      \
        hdr.r##W.add = hdr.o##W.a + hdr.o##W.b;                   \
        hdr.r##W.sub = hdr.o##W.a - hdr.o##W.b;                   \
        hdr.r##W.and_ = hdr.o##W.a & hdr.o##W.b;                  \
        hdr.r##W.or_ = hdr.o##W.a | hdr.o##W.b;                   \
        hdr.r##W.xor_ = hdr.o##W.a ^ hdr.o##W.b;                  \
        hdr.r##W.not_ = ~hdr.o##W.a;                              \
        hdr.r##W.neg = -hdr.o##W.a;                               \
        hdr.r##W.shl = hdr.o##W.a << hdr.o##W.shift;              \
        hdr.r##W.shr = hdr.o##W.a >> hdr.o##W.shift;              \
        hdr.r##W.add_sat = hdr.o##W.a |+| hdr.o##W.b;             \
        hdr.r##W.sub_sat = hdr.o##W.a |-| hdr.o##W.b;             \
        hdr.r##W.mux = hdr.o##W.a > hdr.o##W.b ? hdr.o##W.a : hdr.o##W.b; \
        hdr.r##W.nested = ((hdr.o##W.a + hdr.o##W.b) >> 1) ^ (~hdr.o##W.b & (hdr.o##W.a - 1)); \
        hdr.r##W.eq = (bit<1>)(hdr.o##W.a == hdr.o##W.b);         \
        hdr.r##W.ne = (bit<1>)(hdr.o##W.a != hdr.o##W.b);         \
        hdr.r##W.lt = (bit<1>)(hdr.o##W.a < hdr.o##W.b);          \
        hdr.r##W.le = (bit<1>)(hdr.o##W.a <= hdr.o##W.b);         \
        hdr.r##W.gt = (bit<1>)(hdr.o##W.a > hdr.o##W.b);          \
        hdr.r##W.ge = (bit<1>)(hdr.o##W.a >= hdr.o##W.b);         \
        hdr.r##W.logic = (bit<1>)(hdr.o##W.a == 0 || hdr.o##W.b == 0) ++ \
                         (bit<1>)(!(hdr.o##W.a == 0 && hdr.o##W.b == 0)); \
        hdr.r##W.pad0 = 0; hdr.r##W.pad1 = 0; hdr.r##W.pad2 = 0; hdr.r##W.pad3 = 0; hdr.r##W.pad4 = 0; \
        hdr.r##W.pad5 = 0; hdr.r##W.pad6 = 0; hdr.r##W.pad7 = 0; hdr.r##W.pad8 = 0; hdr.r##W.pad9 = 0; \
        hdr.r##W.pad10 = 0; hdr.r##W.pad11 = 0; hdr.r##W.pad12 = 0; \
    }

#define EXTRACT(W) state operands##W { packet.extract(hdr.o##W); transition accept; }
