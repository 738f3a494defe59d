// Slot rates by earliest departure time: at tc egress every data packet of a flow with a schedule gets the time at
// which it may leave, and the `fq` qdisc holds it until then. For TCP and UDP alike; needs fq on the interface.
#include "packet.h"
#include "slots.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define LONGEST_DELAY (2 * NSEC_PER_SEC) // fq drops what is further in the future than its horizon (10 s)

const volatile __u64 netns; // cookie in the keys of `schedules`

struct departure {
	__u64 next;    // when the flow's next packet may leave
	__u32 version; // of the schedule that said so
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct departure);
} departures SEC(".maps");

SEC("tc")
int depart(struct __sk_buff *skb)
{
	struct departure departure = {}, *before;
	struct packet packet = {};
	struct schedule *schedule;
	__u64 now, at, soonest;
	__u32 index;

	if (!read_packet(skb, &packet) || !packet.payload)
		return TC_ACT_UNSPEC;
	packet.flow.netns = netns;
	schedule = bpf_map_lookup_elem(&schedules, &packet.flow);
	if (!schedule || schedule->enforcer != ENFORCER_EDT)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	before = bpf_map_lookup_elem(&departures, &packet.flow);
	at = before && before->next > now ? before->next : now;
	if (before && before->version != schedule->version) { // as soon as the new one allows
		soonest = now + slots_delay(schedule, now, packet.payload, packet.payload);
		at = at < soonest ? at : soonest;
	}
	index = slot_at(schedule, at);
	if (index < SLOTS_MAX && !schedule->rates[index]) // nothing leaves in a silent slot
		at += slots_delay(schedule, at, 0, packet.payload);
	if (at - now > LONGEST_DELAY)
		return TC_ACT_SHOT;
	departure.next = at;
	departure.version = schedule->version;
	if (slot_at(schedule, at) < SLOTS_MAX)
		departure.next += slots_delay(schedule, at, packet.payload, packet.payload);
	bpf_map_update_elem(&departures, &packet.flow, &departure, BPF_ANY);
	skb->tstamp = at;
	return TC_ACT_UNSPEC;
}
