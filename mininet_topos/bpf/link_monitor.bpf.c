// Which flows send over a link, and when.
//
// Attached at tc egress of every interface from one switch to another. A flow here is a 5-tuple with a DSCP, in one
// direction of one link. Its packets form bursts. A burst ends when the flow has been silent for `gap_ns`, and goes
// to user space when the flow's next packet arrives. Each flow's last burst stays in the map, where user space
// collects it. Packets without payload (pure ACKs, SYN, FIN) are ignored.
//
// What TCP sends again counts as bytes and packets, and does not keep the flow on the link: an acknowledgement that is
// late on a busy machine makes the sender repeat the end of a step that has arrived long ago.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

const volatile __u64 gap_ns = 5000000;

struct flow {
	__u32 ifindex;
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 dscp;
	__u16 unused;
};

struct activity {
	__u64 first_ns;
	__u64 last_ns;
	__u64 bytes;   // payload
	__u64 packets; // as on the wire: the segments of an offloaded packet
};

struct entry {
	struct bpf_spin_lock lock; // several CPUs may send one flow's packets
	__u32 next;                // the sequence number after the highest that was sent (TCP)
	struct activity activity;
};

struct burst {
	struct flow flow;
	struct activity activity;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow);
	__type(value, struct entry);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} bursts SEC(".maps");

__u64 lost;     // bursts lost because the buffer was full
__u64 repeated; // payload that was sent again

// A lower sequence number than this behind the highest is that of another connection with the same ports.
#define WINDOW (64 << 20)

static __always_inline int payload_of(struct __sk_buff *skb, struct flow *flow, __u32 *sequence)
{
	struct iphdr ip;
	int offset = ETH_HLEN, header;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) || ip.ihl < 5)
		return 0;
	offset += ip.ihl * 4;
	if (ip.protocol == IPPROTO_TCP) {
		struct tcphdr tcp;

		if (bpf_skb_load_bytes(skb, offset, &tcp, sizeof(tcp)))
			return 0;
		*sequence = bpf_ntohl(tcp.seq);
		flow->source_port = tcp.source;
		flow->destination_port = tcp.dest;
		header = tcp.doff * 4;
	} else if (ip.protocol == IPPROTO_UDP) {
		struct udphdr udp;

		if (bpf_skb_load_bytes(skb, offset, &udp, sizeof(udp)))
			return 0;
		flow->source_port = udp.source;
		flow->destination_port = udp.dest;
		header = sizeof(udp);
	} else {
		return 0;
	}
	flow->ifindex = skb->ifindex;
	flow->source = ip.saddr;
	flow->destination = ip.daddr;
	flow->protocol = ip.protocol;
	flow->dscp = ip.tos >> 2;
	// a short frame is padded to 60 bytes: the IP length counts, but an offloaded packet may be longer than it says
	int length = (int)skb->len - ETH_HLEN;
	if (length < 64)
		length = bpf_ntohs(ip.tot_len);
	return length - ip.ihl * 4 - header;
}

SEC("tc")
int monitor(struct __sk_buff *skb)
{
	struct flow flow = {};
	__u32 sequence = 0;
	int payload = payload_of(skb, &flow, &sequence);

	if (payload <= 0)
		return TC_ACT_UNSPEC;

	struct entry *entry = bpf_map_lookup_elem(&flows, &flow);
	if (!entry) {
		struct entry fresh = {};

		bpf_map_update_elem(&flows, &flow, &fresh, BPF_NOEXIST);
		entry = bpf_map_lookup_elem(&flows, &flow);
		if (!entry) {
			__sync_fetch_and_add(&lost, 1);
			return TC_ACT_UNSPEC;
		}
	}

	__u64 now = bpf_ktime_get_ns(), packets = skb->gso_segs ? skb->gso_segs : 1;
	struct activity ended = {};
	__u32 next = sequence + payload;

	bpf_spin_lock(&entry->lock);
	int ahead = (int)(next - entry->next);
	if (flow.protocol == IPPROTO_TCP && entry->activity.packets && ahead <= 0 && ahead > -WINDOW) {
		entry->activity.bytes += payload;
		entry->activity.packets += packets;
		bpf_spin_unlock(&entry->lock);
		__sync_fetch_and_add(&repeated, payload);
		return TC_ACT_UNSPEC;
	}
	entry->next = next;
	if (entry->activity.packets && now > entry->activity.last_ns + gap_ns) {
		ended = entry->activity;
		entry->activity.packets = 0;
	}
	if (!entry->activity.packets) {
		entry->activity.first_ns = now;
		entry->activity.last_ns = now;
		entry->activity.bytes = 0;
	}
	if (now > entry->activity.last_ns) // another CPU may have set a later time
		entry->activity.last_ns = now;
	entry->activity.bytes += payload;
	entry->activity.packets += packets;
	bpf_spin_unlock(&entry->lock);

	if (ended.packets) {
		struct burst *burst = bpf_ringbuf_reserve(&bursts, sizeof(*burst), 0);

		if (!burst) {
			__sync_fetch_and_add(&lost, 1);
			return TC_ACT_UNSPEC;
		}
		burst->flow = flow;
		burst->activity = ended;
		bpf_ringbuf_submit(burst, BPF_RB_NO_WAKEUP); // user space polls
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
