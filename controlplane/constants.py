"""Names and sizes of the switch program; made by `python -m controlplane.generate`."""

from enum import IntEnum
from typing import Final

TABLE_LIMITS: Final = "FabricIngress.guard.limits"
TABLE_LIMITS_SIZE: Final = 512
MATCH_LIMITS_INGRESS_PORT: Final = "ingress_port"

TABLE_CLOCK: Final = "FabricIngress.guard.clock"
TABLE_CLOCK_SIZE: Final = 1024

TABLE_VRF: Final = "FabricIngress.vrf"
TABLE_VRF_SIZE: Final = 512
MATCH_VRF_INGRESS_PORT: Final = "ingress_port"

TABLE_ROUTE: Final = "FabricIngress.route"
TABLE_ROUTE_SIZE: Final = 16384
MATCH_ROUTE_VRF: Final = "vrf"
MATCH_ROUTE_DST: Final = "dst"

TABLE_SOURCE_ROUTE: Final = "FabricIngress.source_route"
TABLE_SOURCE_ROUTE_SIZE: Final = 4096
MATCH_SOURCE_ROUTE_INGRESS_PORT: Final = "ingress_port"
MATCH_SOURCE_ROUTE_DST: Final = "dst"

TABLE_ECMP: Final = "FabricIngress.ecmp"
TABLE_ECMP_SIZE: Final = 256
MATCH_ECMP_GROUP: Final = "group"

TABLE_HOST: Final = "FabricIngress.host"
TABLE_HOST_SIZE: Final = 4096
MATCH_HOST_ADDRESS: Final = "address"

TABLE_LINK: Final = "FabricEgress.link"
TABLE_LINK_SIZE: Final = 512
MATCH_LINK_EGRESS_PORT: Final = "egress_port"

ACTION_NOACTION: Final = "NoAction"

ACTION_SET_LIMITS: Final = "FabricIngress.guard.set_limits"
PARAM_SET_LIMITS_LOAD: Final = "load"
PARAM_SET_LIMITS_CARRIERS: Final = "carriers"

ACTION_SET_CLOCK: Final = "FabricIngress.guard.set_clock"
PARAM_SET_CLOCK_SINCE: Final = "since"
PARAM_SET_CLOCK_TURN: Final = "turn"
PARAM_SET_CLOCK_TURNS_PER_US: Final = "turns_per_us"
PARAM_SET_CLOCK_EARLY: Final = "early"
PARAM_SET_CLOCK_ALLOWED: Final = "allowed"

ACTION_SET_VRF: Final = "FabricIngress.set_vrf"
PARAM_SET_VRF_VRF: Final = "vrf"

ACTION_SET_HOST: Final = "FabricIngress.set_host"
PARAM_SET_HOST_VRF: Final = "vrf"
PARAM_SET_HOST_ADDRESS: Final = "address"

ACTION_TO_PORT: Final = "FabricIngress.to_port"
PARAM_TO_PORT_PORT: Final = "port"
PARAM_TO_PORT_DMAC: Final = "dmac"

ACTION_TO_GROUP: Final = "FabricIngress.to_group"
PARAM_TO_GROUP_GROUP: Final = "group"

ACTION_TO_CONTROLLER: Final = "FabricIngress.to_controller"

ACTION_DENY: Final = "FabricIngress.deny"

ACTION_TO_UPLINK: Final = "FabricIngress.to_uplink"
PARAM_TO_UPLINK_PORT: Final = "port"

ACTION_IS_HOST: Final = "FabricIngress.is_host"
PARAM_IS_HOST_MAC: Final = "mac"

ACTION_SET_LINK: Final = "FabricEgress.set_link"
PARAM_SET_LINK_CAPACITY: Final = "capacity"
PARAM_SET_LINK_ECN_THRESHOLD: Final = "ecn_threshold"

ACTION_NO_LINK: Final = "FabricEgress.no_link"

PROFILE_ECMP_SELECTOR: Final = "FabricIngress.ecmp_selector"
PROFILE_ECMP_SELECTOR_SIZE: Final = 1024
PROFILE_ECMP_SELECTOR_GROUP_SIZE: Final = 64

COUNTER_PORT_IN: Final = "FabricIngress.port_in"
COUNTER_PORT_IN_SIZE: Final = 512
COUNTER_VRF_COUNTER: Final = "FabricIngress.vrf_counter"
COUNTER_VRF_COUNTER_SIZE: Final = 1024
COUNTER_DROPS: Final = "FabricIngress.drops"
COUNTER_DROPS_SIZE: Final = 10
COUNTER_REFUSED: Final = "FabricIngress.guard.refused"
COUNTER_REFUSED_SIZE: Final = 2048
COUNTER_PORT_OUT: Final = "FabricEgress.port_out"
COUNTER_PORT_OUT_SIZE: Final = 512

REGISTER_CARRIERS: Final = "FabricIngress.guard.carriers"
REGISTER_CARRIERS_SIZE: Final = 512
REGISTER_ANNOUNCED0: Final = "FabricIngress.guard.announced0"
REGISTER_ANNOUNCED0_SIZE: Final = 512
REGISTER_ANNOUNCED1: Final = "FabricIngress.guard.announced1"
REGISTER_ANNOUNCED1_SIZE: Final = 512
REGISTER_ANNOUNCED2: Final = "FabricIngress.guard.announced2"
REGISTER_ANNOUNCED2_SIZE: Final = 512
REGISTER_ANNOUNCED3: Final = "FabricIngress.guard.announced3"
REGISTER_ANNOUNCED3_SIZE: Final = 512
REGISTER_ANNOUNCED4: Final = "FabricIngress.guard.announced4"
REGISTER_ANNOUNCED4_SIZE: Final = 512
REGISTER_ANNOUNCED5: Final = "FabricIngress.guard.announced5"
REGISTER_ANNOUNCED5_SIZE: Final = 512
REGISTER_ANNOUNCED6: Final = "FabricIngress.guard.announced6"
REGISTER_ANNOUNCED6_SIZE: Final = 512
REGISTER_ANNOUNCED7: Final = "FabricIngress.guard.announced7"
REGISTER_ANNOUNCED7_SIZE: Final = 512
REGISTER_ANNOUNCED8: Final = "FabricIngress.guard.announced8"
REGISTER_ANNOUNCED8_SIZE: Final = 512
REGISTER_ANNOUNCED9: Final = "FabricIngress.guard.announced9"
REGISTER_ANNOUNCED9_SIZE: Final = 512
REGISTER_OWED: Final = "FabricIngress.answers.owed"
REGISTER_OWED_SIZE: Final = 512
REGISTER_LANE0: Final = "FabricEgress.load_table.lane0"
REGISTER_LANE0_SIZE: Final = 512
REGISTER_LANE1: Final = "FabricEgress.load_table.lane1"
REGISTER_LANE1_SIZE: Final = 512
REGISTER_LANE2: Final = "FabricEgress.load_table.lane2"
REGISTER_LANE2_SIZE: Final = 512
REGISTER_LANE3: Final = "FabricEgress.load_table.lane3"
REGISTER_LANE3_SIZE: Final = 512
REGISTER_LANE4: Final = "FabricEgress.load_table.lane4"
REGISTER_LANE4_SIZE: Final = 512
REGISTER_LANE5: Final = "FabricEgress.load_table.lane5"
REGISTER_LANE5_SIZE: Final = 512
REGISTER_LANE6: Final = "FabricEgress.load_table.lane6"
REGISTER_LANE6_SIZE: Final = 512
REGISTER_LANE7: Final = "FabricEgress.load_table.lane7"
REGISTER_LANE7_SIZE: Final = 512
REGISTER_LANE8: Final = "FabricEgress.load_table.lane8"
REGISTER_LANE8_SIZE: Final = 512
REGISTER_LANE9: Final = "FabricEgress.load_table.lane9"
REGISTER_LANE9_SIZE: Final = 512

PACKET_IN_INGRESS_PORT: Final = "ingress_port"
PACKET_IN_PAD: Final = "pad"
PACKET_OUT_EGRESS_PORT: Final = "egress_port"
PACKET_OUT_PAD: Final = "pad"


class DropReason(IntEnum):
    """Why the switch program dropped a packet: an index into the counter `COUNTER_DROPS`."""

    MALFORMED = 0
    """Bad lane, kind, IP version, options, length or checksum."""

    NOT_IP = 1
    """Neither IPv4 nor an ARP request."""

    NO_VRF = 2
    """The ingress port belongs to no VRF."""

    NO_ROUTE = 3
    """The VRF does not know the destination."""

    TTL = 4
    """The time to live is used up."""

    NO_UPLINK = 5
    """An ECMP group without members."""

    FORGED_QUERY = 6
    """A QUERY that does not come from the controller."""

    FORGED_SOURCE = 7
    """The source address is not that of the host at the ingress port."""

    OTHER_VRF = 8
    """The destination is a host of another VRF."""

    VERSION = 9
    """A slot header of another version: switches or hosts wait for an upgrade."""


class RefusedReason(IntEnum):
    """Why it refused what a port announced; with the port, an index into `COUNTER_REFUSED`."""

    SOURCE = 0
    """From another address than the host's."""

    RATE = 1
    """More carriers than the port may send."""

    SLOT = 2
    """About slots that are far from the present one."""

    LOAD = 3
    """More load than the host's link carries; what fits was counted."""
