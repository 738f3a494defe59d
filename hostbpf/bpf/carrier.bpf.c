// The slot header at the host, at the tc hooks of its interface.
//
// Egress: the first packet of a scheduled flow in a slot gets a carrier ahead of it: a clone, trimmed to its headers,
// with the slot header behind the MAC header, so that it takes the flow's path. The clone passes this program twice
// more, told apart by its mark: once to be rewritten, and once after the redirect that makes its accounted length
// right. The original is never changed. Feedback leaves in the same way on the next packet of the reverse flow.
//
// Ingress: every packet with a slot header ends here, so that no application and no kernel protocol sees one.
#include "packet.h"
#include "slots.h"
#include "slot_header.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define MARK_CLONE 0xe57a1401 // this and the next are not for sockets
#define MARK_CARRIER 0xe57a1402
#define UNIT_BYTES (SLOT_RATE_UNIT_MBPS * 125000) // per second
#define HEADROOM_MAX 0xffffffff

const volatile __u64 netns; // cookie in the keys of `schedules`

// A flow that announces its schedule.
struct announcer {
	__u64 stamp; // slot and version that were announced last
	__u32 number;
	__u32 reserved;
	struct {
		__u32 epoch;
		__u32 rate;
	} lanes[SLOT_LANES]; // what was announced, in rate units
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct announcer);
} announcers SEC(".maps");

// The last carrier of a flow that we receive, kept for the feedback, and the flow's progress.
struct received {
	struct slot_header header;
	__u16 reserved;
	__u32 pending; // feedback is due
	__u32 highest; // TCP sequence number behind what arrived
	__u64 bytes;
	__u64 onward; // written by the agent
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key); // of the reverse flow
	__type(value, struct received);
} received_flows SEC(".maps");

struct feedback {
	struct flow_key flow;
	struct slot_header header;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} feedbacks SEC(".maps");

enum count {
	SENT,
	SENT_FEEDBACK,
	RECEIVED,
	RECEIVED_FEEDBACK,
	NOT_SENT,      // the packet could not be made
	MALFORMED,     // truncated, wrong version or kind
	UNKNOWN_FLOW,  // feedback for a flow that does not announce
	NOT_DELIVERED, // the ring buffer was full
	COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

// The header that the clone is to carry; the clone is rewritten on the same processor.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2); // leaving, arriving
	__type(key, __u32);
	__type(value, struct slot_header);
} scratch SEC(".maps");

enum { LEAVING, ARRIVING };

static __always_inline void count(__u32 what)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &what);

	if (value)
		(*value)++;
}

static __always_inline struct slot_header *scratch_header(__u32 which)
{
	return bpf_map_lookup_elem(&scratch, &which);
}

static __always_inline void put48(__u8 *field, __u64 value)
{
	__u32 i;

	for (i = 0; i < 6; i++)
		field[i] = value >> (40 - 8 * i);
}

static __always_inline struct slot_header *new_header(__u8 kind, __u32 base_slot, __u32 number)
{
	struct slot_header *header = scratch_header(LEAVING);

	if (!header)
		return NULL;
	__builtin_memset(header, 0, sizeof(*header));
	header->version_kind = SLOT_VERSION << 4 | kind;
	header->next_ethertype = bpf_htons(ETH_P_IP);
	header->base_slot = bpf_htonl(base_slot);
	header->flow = bpf_htonl(number);
	return header;
}

// Send a clone of `skb` ahead of it, to be rewritten by `write_carrier`.
static __always_inline bool clone_ahead(struct __sk_buff *skb)
{
	__u32 mark = skb->mark;
	long error;

	skb->mark = MARK_CLONE;
	error = bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = mark;
	return !error;
}

static __always_inline int write_carrier(struct __sk_buff *skb)
{
	struct slot_header *header = scratch_header(LEAVING);
	__be16 ethertype = bpf_htons(ETHERTYPE_SLOT);
	struct packet packet = {};

	if (!header || !read_packet(skb, &packet) || bpf_skb_change_tail(skb, packet.headers, 0) ||
	    bpf_skb_adjust_room(skb, sizeof(*header), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, header, sizeof(*header), 0)) {
		count(NOT_SENT);
		return TC_ACT_SHOT;
	}
	skb->mark = MARK_CARRIER;
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline void announce(struct __sk_buff *skb, const struct flow_key *flow)
{
	struct announcer *announcer = bpf_map_lookup_elem(&announcers, flow);
	struct slot_header *header;
	struct schedule *schedule;
	struct flow_key key = *flow;
	__u64 stamp, before;
	__u32 index, base, i;

	if (!announcer)
		return;
	key.netns = netns;
	schedule = bpf_map_lookup_elem(&schedules, &key);
	if (!schedule)
		return;
	index = slot_at(schedule, bpf_ktime_get_ns());
	if (index >= SLOTS_MAX)
		return;
	base = schedule->base_slot + index;
	stamp = (__u64)base << 32 | schedule->version;
	before = announcer->stamp;
	if (before == stamp || __sync_val_compare_and_swap(&announcer->stamp, before, stamp) != before)
		return; // announced already, or another processor is doing it
	header = new_header(SLOT_SCHEDULE, base, announcer->number);
	if (!header)
		return;
	for (i = 0; i < SLOT_LANES; i++) {
		__u32 slot = base + i, lane = slot % SLOT_LANES, epoch = slot / SLOT_LANES;
		__u32 rate = 0, announced = 0, at = index + i;

		asm volatile("" : "+r"(lane)); // the verifier does not know what a remainder is
		if (lane >= SLOT_LANES)
			return;
		if (at < schedule->slots && at < SLOTS_MAX)
			rate = schedule->rates[at] / UNIT_BYTES;
		if (announcer->lanes[lane].epoch == epoch)
			announced = announcer->lanes[lane].rate;
		announcer->lanes[lane].epoch = epoch;
		announcer->lanes[lane].rate = rate;
		header->lanes[lane].epoch = bpf_htonl(epoch);
		header->lanes[lane].delta = bpf_htonl(rate - announced);
		header->lanes[lane].headroom = bpf_htonl(HEADROOM_MAX);
	}
	if (clone_ahead(skb))
		count(SENT);
}

static __always_inline void answer(struct __sk_buff *skb, const struct flow_key *flow)
{
	struct received *received = bpf_map_lookup_elem(&received_flows, flow);
	struct slot_header *header;

	if (!received || !received->pending || !__sync_val_compare_and_swap(&received->pending, 1, 0))
		return;
	header = scratch_header(LEAVING);
	if (!header)
		return;
	*header = received->header;
	header->version_kind = SLOT_VERSION << 4 | SLOT_FEEDBACK;
	put48(header->bytes_received, received->bytes);
	put48(header->bytes_onward, received->onward);
	if (clone_ahead(skb))
		count(SENT_FEEDBACK);
}

SEC("tc")
int carrier_egress(struct __sk_buff *skb)
{
	struct packet packet = {};

	if (skb->mark == MARK_CLONE)
		return write_carrier(skb);
	if (skb->mark == MARK_CARRIER) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (!read_packet(skb, &packet))
		return TC_ACT_UNSPEC;
	answer(skb, &packet.flow);
	if (packet.payload)
		announce(skb, &packet.flow);
	return TC_ACT_UNSPEC;
}

// The flow of the packet behind a slot header, and its TCP sequence number.
static __always_inline bool read_carried(struct __sk_buff *skb, struct flow_key *flow, __u32 *sequence)
{
	const __u32 network = ETH_HLEN + sizeof(struct slot_header);
	struct iphdr ip;
	struct tcphdr tcp = {};

	if (bpf_skb_load_bytes(skb, network, &ip, sizeof(ip)) || ip.ihl != 5)
		return false;
	if (bpf_skb_load_bytes(skb, network + sizeof(ip), &tcp, sizeof(struct udphdr)))
		return false;
	flow->source = ip.saddr;
	flow->destination = ip.daddr;
	flow->source_port = tcp.source;
	flow->destination_port = tcp.dest;
	flow->protocol = ip.protocol;
	*sequence = ip.protocol == IPPROTO_TCP ? bpf_ntohl(tcp.seq) : 0;
	return true;
}

static __always_inline struct flow_key reversed(const struct flow_key *flow)
{
	struct flow_key reverse = {
		.source = flow->destination,
		.destination = flow->source,
		.source_port = flow->destination_port,
		.destination_port = flow->source_port,
		.protocol = flow->protocol,
	};

	return reverse;
}

static const struct received nothing_received;

static __always_inline void keep_schedule(const struct flow_key *flow, __u32 sequence, struct slot_header *header)
{
	struct flow_key reverse = reversed(flow);
	struct received *received = bpf_map_lookup_elem(&received_flows, &reverse);

	count(RECEIVED);
	if (!received) {
		bpf_map_update_elem(&received_flows, &reverse, &nothing_received, BPF_NOEXIST);
		received = bpf_map_lookup_elem(&received_flows, &reverse);
		if (!received)
			return;
		received->highest = sequence;
	}
	received->header = *header;
	received->pending = 1;
}

static __always_inline void deliver_feedback(const struct flow_key *flow, const struct slot_header *header)
{
	struct flow_key sent = reversed(flow);
	struct announcer *announcer = bpf_map_lookup_elem(&announcers, &sent);
	struct feedback *feedback;

	if (!announcer || bpf_htonl(announcer->number) != header->flow) {
		count(UNKNOWN_FLOW);
		return;
	}
	feedback = bpf_ringbuf_reserve(&feedbacks, sizeof(*feedback), 0);
	if (!feedback) {
		count(NOT_DELIVERED);
		return;
	}
	feedback->flow = sent;
	feedback->header = *header;
	bpf_ringbuf_submit(feedback, 0);
	count(RECEIVED_FEEDBACK);
}

// How far a flow has come that is being received.
static __always_inline void progress(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct flow_key reverse;
	struct received *received;
	__u32 end;

	if (!read_packet(skb, &packet) || !packet.payload)
		return;
	reverse = reversed(&packet.flow);
	received = bpf_map_lookup_elem(&received_flows, &reverse);
	if (!received)
		return;
	if (packet.flow.protocol != IPPROTO_TCP) {
		received->bytes += packet.payload;
		return;
	}
	end = bpf_ntohl(packet.tcp.seq) + packet.payload;
	if ((__s32)(end - received->highest) > 0) {
		received->bytes += end - received->highest;
		received->highest = end;
	}
}

SEC("tc")
int carrier_ingress(struct __sk_buff *skb)
{
	struct slot_header *header;
	struct flow_key flow = {};
	__u32 sequence;

	if (skb->protocol != bpf_htons(ETHERTYPE_SLOT)) {
		progress(skb);
		return TC_ACT_UNSPEC;
	}
	header = scratch_header(ARRIVING);
	if (!header || bpf_skb_load_bytes(skb, ETH_HLEN, header, sizeof(*header)) ||
	    header->version_kind >> 4 != SLOT_VERSION || header->next_ethertype != bpf_htons(ETH_P_IP) ||
	    !read_carried(skb, &flow, &sequence)) {
		count(MALFORMED);
		return TC_ACT_SHOT;
	}
	switch (header->version_kind & 0xf) {
	case SLOT_SCHEDULE:
		keep_schedule(&flow, sequence, header);
		break;
	case SLOT_FEEDBACK:
		deliver_feedback(&flow, header);
		break;
	default:
		count(MALFORMED);
	}
	return TC_ACT_SHOT; // consumed
}
