// Checksums verified and updated: IPv4's header, UDP's with pseudo header and payload, and the other algorithms, each
// only where its condition holds. The verdict is written into the packet.
#include "base.p4"

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> dscp;
    bit<16> total_length;
    bit<16> id;
    bit<3> flags;
    bit<13> offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header options_t {
    varbit<320> data;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

header sums_t {
    bit<8> flags;            // which of these to verify and update
    bit<8> value;
    bit<16> xor16;
    bit<16> crc16;
    bit<32> crc32;
    bit<16> payload;
}

header verdict_t {
    bit<8> checksum_error;
}

struct metadata_t {
    bit<16> udp_length;
}

struct headers_t {
    ethernet_t ethernet;
    verdict_t verdict;
    ipv4_t ipv4;
    options_t options;
    udp_t udp;
    sums_t sums;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            0x0800: ipv4;
            0x9F00: sums;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.udp_length = hdr.ipv4.total_length - (bit<16>) (hdr.ipv4.ihl ++ 2w0);
        transition select(hdr.ipv4.ihl) {
            5: transport;
            6..15: options;
            default: accept;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>) (hdr.ipv4.ihl - 5) << 5);
        transition transport;
    }
    state transport {
        transition select(hdr.ipv4.protocol) {
            17: udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition accept;
    }
    state sums {
        packet.extract(hdr.sums);
        transition accept;
    }
}

#define IPV4_FIELDS { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.total_length, hdr.ipv4.id, \
    hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }
#define OPTION_FIELDS { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.total_length, hdr.ipv4.id, \
    hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.options.data }
#define UDP_FIELDS { hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length, \
    hdr.udp.src, hdr.udp.dst, hdr.udp.length }

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && !hdr.options.isValid(), IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum(hdr.options.isValid(), OPTION_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0, UDP_FIELDS, hdr.udp.checksum,
                                     HashAlgorithm.csum16);
        verify_checksum(hdr.sums.isValid() && hdr.sums.flags & 1 != 0, { hdr.sums.flags, hdr.sums.value },
                        hdr.sums.xor16, HashAlgorithm.xor16);
    }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        FENCE_INGRESS
        std.egress_spec = std.ingress_port;
        hdr.verdict.setValid();
        hdr.verdict.checksum_error = (bit<8>) std.checksum_error;
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
            hdr.ipv4.dst = hdr.ipv4.dst ^ 0x01020304;
        }
        if (hdr.udp.isValid()) {
            hdr.udp.dst = hdr.udp.dst + 1;
        }
        if (hdr.sums.isValid()) {
            hdr.sums.value = hdr.sums.value + 1;
        }
    }
}

EMPTY_EGRESS

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && !hdr.options.isValid(), IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(hdr.options.isValid(), OPTION_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0, UDP_FIELDS, hdr.udp.checksum,
                                     HashAlgorithm.csum16);
        update_checksum(hdr.sums.isValid() && hdr.sums.flags & 2 != 0, { hdr.sums.flags, hdr.sums.value },
                        hdr.sums.xor16, HashAlgorithm.xor16);
        update_checksum(hdr.sums.isValid() && hdr.sums.flags & 4 != 0, { hdr.sums.flags, hdr.sums.value },
                        hdr.sums.crc16, HashAlgorithm.crc16);
        update_checksum(hdr.sums.isValid() && hdr.sums.flags & 8 != 0, { hdr.sums.flags, hdr.sums.value },
                        hdr.sums.crc32, HashAlgorithm.crc32);
        update_checksum_with_payload(hdr.sums.isValid() && hdr.sums.flags & 16 != 0,
                                     { hdr.sums.flags, hdr.sums.value }, hdr.sums.payload, HashAlgorithm.csum16);
    }
}

DEPARSE_ALL
SWITCH
