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

// The headers of an ordinary packet, from the end of the MAC addresses on.
struct headers {
	__u16 reserved; // of the MAC address: what follows is aligned
	__be16 ethertype;
	struct iphdr ip;
	struct tcphdr tcp;
};
#define HEADERS (ETH_HLEN - offsetof(struct headers, ip))

// What the frame itself says, whatever its sender told the kernel.
static inline __attribute__((always_inline)) __be16 ethertype_of(struct __sk_buff *skb)
{
	struct headers *headers = (void *)(long)skb->data + HEADERS;
	__be16 ethertype = 0;

	if ((void *)&headers->ip <= (void *)(long)skb->data_end)
		return headers->ethertype;
	bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype));
	return ethertype;
}

static inline __attribute__((always_inline)) bool read_packet(struct __sk_buff *skb, struct packet *packet)
{
	__u32 transport = ETH_HLEN + sizeof(struct iphdr), length = skb->len;
	struct headers *headers = (void *)(long)skb->data + HEADERS, copy;
	struct iphdr *ip;

	if ((void *)(headers + 1) > (void *)(long)skb->data_end) { // a short packet, or one in pieces
		if (bpf_skb_load_bytes(skb, HEADERS, &copy, sizeof(copy)) &&
		    bpf_skb_load_bytes(skb, HEADERS, &copy, offsetof(struct headers, tcp) + sizeof(struct udphdr)))
			return false;
		headers = &copy;
	}
	ip = &headers->ip;
	if (skb->protocol != bpf_htons(ETH_P_IP) || headers->ethertype != bpf_htons(ETH_P_IP))
		return false;
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff)) // a fragment has no ports
		return false;
	packet->tcp = headers->tcp;
	packet->headers = transport + sizeof(struct udphdr);
	if (ip->protocol == IPPROTO_TCP) {
		if (length < transport + sizeof(struct tcphdr))
			return false;
		packet->headers = transport + packet->tcp.doff * 4;
	} else if (ip->protocol != IPPROTO_UDP) {
		return false;
	}
	if (length <=
	    ETH_ZLEN) // may be padded; of longer ones, offloaded packets do not tell their length in the header
		length = ETH_HLEN + bpf_ntohs(ip->tot_len);
	packet->payload = length > packet->headers ? length - packet->headers : 0;
	packet->flow.netns = 0;
	packet->flow.source = ip->saddr;
	packet->flow.destination = ip->daddr;
	packet->flow.source_port = packet->tcp.source;
	packet->flow.destination_port = packet->tcp.dest;
	packet->flow.protocol = ip->protocol;
	return true;
}
