// The switch program of the fabric: one for leaf and spine alike, its tables make the difference.

#include <core.p4>
#include <v1model.p4>

#include "target.p4"
#include "../shared/headers.p4"
#include "parser.p4"
#include "checksum.p4"
#include "ingress.p4"
#include "egress.p4"

V1Switch(FabricParser(), FabricVerifyChecksum(), FabricIngress(), FabricEgress(), FabricComputeChecksum(),
         FabricDeparser()) main;
