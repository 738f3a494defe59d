// The switch program of the fabric for Tofino: the same tables as v1model's, so the same controller fills them.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

#include "target.p4"
#include "../shared/headers.p4"

// Without it, the traffic manager's metadata and a carrier are more than the egress of a Tofino 1 can parse.
@egress_intrinsic_metadata_opt
#define FIELD_NAME(name) #name
#define IN_FIELDS(n) @do_not_use_clot("egress", FIELD_NAME(hdr.lane##n))
// A Tofino 2 could carry what egress only reads past it. p4c 1.2.5.16 writes assembly that its assembler refuses.
FOR_EACH_LANE(IN_FIELDS)
@do_not_use_clot("egress", "hdr.slot")
@do_not_use_clot("egress", "hdr.ipv4")
#undef IN_FIELDS
struct egress_metadata_t {
    PortId_t link;           // the link whose load and capacity count
    bit<16> ecn_threshold;   // queue depth in packets from which ECN marks; 0: never
    bit<3> ecn_unreachable;  // the threshold's upper bits: no queue is so deep
    // epoch of the lane, and the load planned on the link in its slot; then what that leaves of the link
#define PLANNED(n) bit<16> epoch##n; bit<32> planned##n;
    FOR_EACH_LANE(PLANNED)
#undef PLANNED
}

#include "parser.p4"
#include "ingress.p4"
#include "egress.p4"

Pipeline(FabricIngressParser(), FabricIngress(), FabricIngressDeparser(), FabricEgressParser(), FabricEgress(),
         FabricEgressDeparser()) pipe;

Switch(pipe) main;
