// The light path of an emulated optical circuit switch. Attached at tc ingress of the panel's end of every port.
//
// What arrives at a port leaves at the port that a circuit joins it to. Without a circuit, while a circuit is being
// made, or when either port has failed, it is lost, and counted.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define MOST_PORTS 65536

char _license[] SEC("license") = "Dual MIT/GPL";

struct path {
	__u64 lit_ns;  // light passes from then on (CLOCK_MONOTONIC)
	__u32 ifindex; // where it leaves
	__u32 failed;  // one of both ports has failed
};

struct traffic {
	__u64 passed;
	__u64 passed_bytes;
	__u64 lost;
	__u64 lost_bytes;
};

/* By the interface that light comes in at. An update replaces a value as a whole. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct path);
} paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct traffic);
} counters SEC(".maps");

SEC("tc")
int cross(struct __sk_buff *skb)
{
	__u32 port = skb->ifindex;
	struct path *path = bpf_map_lookup_elem(&paths, &port);
	struct traffic *traffic = bpf_map_lookup_elem(&counters, &port);
	__u64 frames = skb->gso_segs ? skb->gso_segs : 1;

	if (!traffic)
		return TC_ACT_SHOT;
	if (!path || path->failed || bpf_ktime_get_ns() < path->lit_ns) {
		__sync_fetch_and_add(&traffic->lost, frames);
		__sync_fetch_and_add(&traffic->lost_bytes, skb->len);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&traffic->passed, frames);
	__sync_fetch_and_add(&traffic->passed_bytes, skb->len);
	return bpf_redirect(path->ifindex, 0);
}
