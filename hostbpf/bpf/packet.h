// The flow that an IPv4 TCP or UDP packet at a tc hook belongs to.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_key.h"

struct packet {
	struct flow_key flow; // netns is 0
	struct tcphdr tcp;    // of a UDP packet, only the ports
	__u32 headers;        // bytes before the payload
	__u32 payload;
};

static inline __attribute__((always_inline)) bool read_packet(struct __sk_buff *skb, struct packet *packet)
{
	__u32 transport = ETH_HLEN + sizeof(struct iphdr), length = skb->len;
	struct iphdr ip;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return false;
	if (ip.ihl != 5 || ip.frag_off & bpf_htons(0x3fff)) // a fragment has no ports
		return false;
	if (bpf_skb_load_bytes(skb, transport, &packet->tcp, sizeof(struct udphdr)))
		return false;
	packet->headers = transport + sizeof(struct udphdr);
	if (ip.protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, transport, &packet->tcp, sizeof(packet->tcp)))
			return false;
		packet->headers = transport + packet->tcp.doff * 4;
	} else if (ip.protocol != IPPROTO_UDP) {
		return false;
	}
	if (length <= ETH_ZLEN) // may be padded; of longer ones, offloaded packets do not tell their length in the header
		length = ETH_HLEN + bpf_ntohs(ip.tot_len);
	packet->payload = length > packet->headers ? length - packet->headers : 0;
	packet->flow.netns = 0;
	packet->flow.source = ip.saddr;
	packet->flow.destination = ip.daddr;
	packet->flow.source_port = packet->tcp.source;
	packet->flow.destination_port = packet->tcp.dest;
	packet->flow.protocol = ip.protocol;
	return true;
}
