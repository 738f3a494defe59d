// Measures what was really sent: TCP or UDP payload bytes per flow and slot, and when a slot's first packet came.
// Attached at tc egress; changes nothing.
#include "packet.h"

char _license[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 start_ns; // CLOCK_MONOTONIC, when slot 0 begins
const volatile __u64 slot_ns = 60000000;

struct slot_of_flow {
	struct flow_key flow;
	__u64 slot;
};

struct sent {
	__u64 bytes;
	__u64 first_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct slot_of_flow);
	__type(value, struct sent);
} meter SEC(".maps");

SEC("tc")
int measure(struct __sk_buff *skb)
{
	struct slot_of_flow key = {};
	struct sent fresh = {}, *sent;
	struct packet packet = {};
	__u64 now = bpf_ktime_get_ns();

	if (now < start_ns || !read_packet(skb, &packet) || !packet.payload)
		return TC_ACT_UNSPEC;
	key.flow = packet.flow;
	key.slot = (now - start_ns) / slot_ns;
	sent = bpf_map_lookup_elem(&meter, &key);
	if (!sent) {
		fresh.first_ns = now;
		bpf_map_update_elem(&meter, &key, &fresh, BPF_NOEXIST);
		sent = bpf_map_lookup_elem(&meter, &key);
		if (!sent)
			return TC_ACT_UNSPEC;
	}
	__sync_fetch_and_add(&sent->bytes, packet.payload);
	return TC_ACT_UNSPEC;
}
