// What a host may do to others by carriers: send some, from its own address. v1model's guard also limits what they
// announce, and about which slots; docs/tofino.md says why this one does not. A port without an entry is not limited.

struct window_t {
    bit<32> carriers;
    bit<32> window;
}

control Guard(inout metadata_t meta, in bit<1> answer, in ingress_intrinsic_metadata_t ig_intr_md,
              in ingress_intrinsic_metadata_from_parser_t ig_prsr_md) {
    // By ingress port and reason, REFUSED_REASONS each.
    Counter<bit<64>, bit<11>>(MAX_PORTS * REFUSED_REASONS, CounterType_t.PACKETS) refused;
    // Of each port: a window of 67 ms, and how many carriers came in it. Answers are counted apart: whoever sends many
    // carriers to a host does not use up that host's own number.
    Register<window_t, bit<10>>(2 * MAX_PORTS, {0, 0}) carriers;
    bit<16> window = 0;
    bit<32> limit_carriers = 0;
    bit<32> excess = 0;
    bit<2> reason = 0;

    RegisterAction<window_t, bit<10>, bit<32>>(carriers) count_carrier = {
        void apply(inout window_t cell, out bit<32> number) {
            if (cell.window == (bit<32>)window) {
                cell.carriers = cell.carriers + 1;
            } else {
                cell.window = (bit<32>)window;
                cell.carriers = 1;
            }
            number = cell.carriers;
        }
    };

    // `load` is what the host may announce for a slot. It is not checked here.
    action set_limits(bit<32> load, bit<32> carriers) {
        limit_carriers = carriers;
    }

    table limits {
        key = { ig_intr_md.ingress_port: exact @name("ingress_port"); }
        actions = { set_limits; @defaultonly NoAction; }
        const default_action = NoAction();
        size = LINK_TABLE_SIZE;
    }

    @hidden action refuse(bit<2> why) {
        meta.refused = true;
        reason = why;
    }

    apply {
        window = ig_prsr_md.global_tstamp[41:26];
        if (meta.host != 0 && meta.src != meta.host) {
            refuse(REFUSED_SOURCE);
        } else if (limits.apply().hit) {
            excess = count_carrier.execute(answer ++ ig_intr_md.ingress_port);
            excess = excess |-| limit_carriers;
            if (excess != 0) {
                refuse(REFUSED_RATE);
            }
        }
        if (meta.refused) {
            refused.count(ig_intr_md.ingress_port ++ reason);
        }
    }
}
