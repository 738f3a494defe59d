/* How long each segment of a TCP connection is on its way between two hooks, both at tc ingress. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

const volatile __u16 port; /* of the receiver */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32); /* sequence number */
	__type(value, __u64);
} began SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} transits SEC(".maps");

static __always_inline bool sequence_of(struct __sk_buff *skb, __u32 *sequence)
{
	struct iphdr ip;
	struct tcphdr tcp;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) ||
	    ip.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &tcp, sizeof(tcp)) ||
	    tcp.dest != bpf_htons(port) || skb->len <= ETH_HLEN + sizeof(ip) + tcp.doff * 4)
		return false;
	*sequence = tcp.seq;
	return true;
}

SEC("tc")
int begin(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 sequence;

	if (sequence_of(skb, &sequence))
		bpf_map_update_elem(&began, &sequence, &now, BPF_ANY);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int end(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), *then, took;
	__u32 sequence;

	if (!sequence_of(skb, &sequence))
		return TC_ACT_UNSPEC;
	then = bpf_map_lookup_elem(&began, &sequence);
	if (then) {
		took = now - *then;
		bpf_ringbuf_output(&transits, &took, sizeof(took), BPF_RB_NO_WAKEUP);
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "GPL";
