// Headers and metadata that every architecture shares. Its target.p4 says before this what differs.
#ifndef _HEADERS_P4_
#define _HEADERS_P4_

#include "size.p4"
#include "slot_header.p4"

typedef bit<16> VrfId_t;
typedef bit<16> GroupId_t;

const PortId_t CPU_PORT = TARGET_CPU_PORT;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> PROTO_TCP = 6;
const bit<8> PROTO_UDP = 17;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;
const bit<2> ECN_NOT_CAPABLE = 0;
const bit<2> ECN_CONGESTED = 3;

// Why a packet was dropped: index of the counter `drops`. `make p4` gives the controller and the tests their names.
const bit<32> DROP_MALFORMED = 0;      // bad lane, kind, IP version, options, length or checksum
const bit<32> DROP_NOT_IP = 1;         // neither IPv4 nor an ARP request
const bit<32> DROP_NO_VRF = 2;         // the ingress port belongs to no VRF
const bit<32> DROP_NO_ROUTE = 3;       // the VRF does not know the destination
const bit<32> DROP_TTL = 4;            // the time to live is used up
const bit<32> DROP_NO_UPLINK = 5;      // an ECMP group without members
const bit<32> DROP_FORGED_QUERY = 6;   // a QUERY that does not come from the controller
const bit<32> DROP_FORGED_SOURCE = 7;  // the source address is not that of the host at the ingress port
const bit<32> DROP_OTHER_VRF = 8;      // the destination is a host of another VRF
const bit<32> DROP_VERSION = 9;        // a slot header of another version: switches or hosts wait for an upgrade
#define DROP_REASONS 10

// Why carriers from a port were refused: with the port, index of the counter `refused`.
const bit<2> REFUSED_SOURCE = 0;  // from another address than the host's
const bit<2> REFUSED_RATE = 1;    // more carriers than the port may send
const bit<2> REFUSED_SLOT = 2;    // about slots that are far from the present one
const bit<2> REFUSED_LOAD = 3;    // more load than the host's link carries; what fits was counted
#define REFUSED_REASONS 4

@controller_header("packet_in")
header packet_in_t {
    PortId_t ingress_port;
    bit<7> pad;
}

@controller_header("packet_out")
header packet_out_t {
    PortId_t egress_port;
    bit<7> pad;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

header arp_t {
    bit<16> hardware;
    bit<16> protocol;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

// The first four bytes of TCP and UDP alike; nothing else of them is used.
header ports_t {
    bit<16> src;
    bit<16> dst;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    slot_t slot;
    lane_t lane0;
    lane_t lane1;
    lane_t lane2;
    lane_t lane3;
    lane_t lane4;
    lane_t lane5;
    lane_t lane6;
    lane_t lane7;
    lane_t lane8;
    lane_t lane9;
    slot_tail_t slot_tail;
    arp_t arp;
    ipv4_t ipv4;
    ports_t ports;
}

struct metadata_t {
    VrfId_t vrf;
    bit<32> host;            // address of the host at the ingress port; 0: a switch is there
    bit<32> src;             // of the IPv4 packet or the ARP request
    bit<32> dst;
    bool denied;             // the VRF does not know the destination
    bit<48> mac;             // of the host that dst belongs to
    GroupId_t group;         // ECMP group of the route; 0: none
    bit<16> src_port;        // 0 for fragments and where there are no ports
    bit<16> dst_port;
    bool malformed;
    bool refused;            // a carrier that the host at the ingress port may not send
    PortId_t link;           // the link whose load and capacity count
    bit<32> capacity;        // of that link, in rate units
    bit<19> ecn_threshold;   // queue depth in packets from which ECN marks; 0: never
    TARGET_METADATA
}

#endif
