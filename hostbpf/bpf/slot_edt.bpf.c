// Slot rates by earliest departure time: at tc egress every packet of a flow with a schedule gets the time at
// which it may leave, and the `fq` qdisc holds it until then. For TCP and UDP alike; needs fq on the interface.
#include "packet.h"
#include "slots.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define LONGEST_DELAY (2 * NSEC_PER_SEC) // fq drops what is further in the future than its horizon (10 s)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u64); // when the flow's next packet may leave
} departures SEC(".maps");

SEC("tc")
int depart(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct schedule *schedule;
	__u64 now, at, next, *departure;

	if (!read_packet(skb, &packet))
		return TC_ACT_UNSPEC;
	schedule = bpf_map_lookup_elem(&schedules, &packet.flow);
	if (!schedule)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	departure = bpf_map_lookup_elem(&departures, &packet.flow);
	at = departure && *departure > now ? *departure : now;
	if (at - now > LONGEST_DELAY)
		return TC_ACT_SHOT;
	if (slot_at(schedule, at) < SLOTS_MAX) {
		next = at + slots_delay(schedule, at, skb->len, skb->len);
		bpf_map_update_elem(&departures, &packet.flow, &next, BPF_ANY);
	}
	skb->tstamp = at;
	return TC_ACT_UNSPEC;
}
