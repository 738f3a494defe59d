// Slot rates by queueing: at tc egress every data packet of a flow with a schedule is sent to the flow's class of the
// interface's HTB qdisc, whose rate the agent changes. Where there is no schedule, or it has ended, packets pass by.
#include "packet.h"
#include "slots.h"

char _license[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 netns; // cookie in the keys of `schedules`

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32); // class
} classes SEC(".maps");

SEC("tc")
int classify(struct __sk_buff *skb)
{
	struct schedule *schedule;
	struct packet packet = {};
	__u32 *class;

	if (!read_packet(skb, &packet) || !packet.payload)
		return TC_ACT_UNSPEC;
	class = bpf_map_lookup_elem(&classes, &packet.flow);
	if (!class)
		return TC_ACT_UNSPEC;
	packet.flow.netns = netns;
	schedule = bpf_map_lookup_elem(&schedules, &packet.flow);
	if (schedule && slot_at(schedule, bpf_ktime_get_ns()) < SLOTS_MAX)
		skb->priority = *class;
	return TC_ACT_UNSPEC;
}
