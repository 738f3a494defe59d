// The slot header at the host, at the tc hooks of its interface.
//
// Egress: the first packet of a scheduled flow in a slot gets a carrier ahead of it: a clone, trimmed to its headers,
// with the slot header behind the MAC header, so that it takes the flow's path. The clone passes this program twice
// more, told apart by its mark: once to be rewritten, and once after the redirect that makes its accounted length
// right. The original is never changed. A flow that has nothing to send is probed: the agent sends a packet of
// nothing but the flow's headers, which becomes the carrier itself.
//
// Ingress: every packet with a slot header ends here, so that no application and no kernel protocol sees one. What
// announces a schedule is turned round and goes back as feedback at once, without waiting for the flow's own packets.
#include <linux/if_packet.h>

#include "packet.h"
#include "slots.h"
#include "slot_header.h"

char _license[] SEC("license") = "Dual MIT/GPL";

// These marks are not for sockets, but for the probes'.
#define MARK_CLONE 0xe57a1401      // to be rewritten to a carrier
#define MARK_CARRIER 0xe57a1402    // made here: may leave
#define MARK_PROBE 0xe57a1403      // headers of a flow, to be made its carrier
#define MARK_WITHDRAWAL 0xe57a1404 // likewise, the flow's last

#define UNIT_BYTES (SLOT_RATE_UNIT_MBPS * 125000) // per second
#define LATE_SHIFT 10                             // the unit of a carrier's lateness: 1024 ns
#define LATE_MAX 0x7fffffffLL

const volatile __u64 netns; // cookie in the keys of `schedules`

// Slot s begins at epoch_ns + s * slot_ns, on CLOCK_MONOTONIC; epoch_ns may be negative.
struct slot_clock {
	__u64 epoch_ns;
	__u64 slot_ns; // 0: unknown, so nothing is announced
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot_clock);
} slot_clock SEC(".maps");

// How many flows announce; written by the agent.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} announcing SEC(".maps");

// What a flow plans in the slot that a lane stands for.
struct planned {
	__u32 epoch; // slot div SLOT_LANES; of what arrives, the 16 bits that the header has
	__u32 rate;  // in rate units
};

// A flow that announces its schedule.
struct announcer {
	struct bpf_spin_lock lock;
	__u32 number;
	__u64 stamp;                      // slot and version that were announced last
	__u64 timed_ns;                   // when the carrier left whose feedback is timed; 0: none is
	__u32 timed_slot;                 // its base slot
	__u16 under_way;                  // carriers of that slot whose feedback has not come
	__u16 withdrawn;                  // announces no more
	struct planned lanes[SLOT_LANES]; // what was announced
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct announcer);
} announcers SEC(".maps");

// How far a flow has come that is received with carriers. No LRU: forged carriers could then push real flows out.
struct received {
	__u64 bytes;                      // since its first carrier
	__u64 seen_ns;                    // when its last carrier came
	__u32 highest;                    // TCP sequence number behind what arrived
	__u32 started;                    // highest is known
	struct planned lanes[SLOT_LANES]; // sum of the changes in its carriers
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key); // as its sender sees it
	__type(value, struct received);
} received_flows SEC(".maps");

bool receiving; // a carrier has come

// What has been sent onward of it; written by the agent.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, __u64);
} onward SEC(".maps");

struct feedback {
	struct flow_key flow;
	__u64 sent_ns; // when the carrier left; 0: this one was not timed
	__u64 arrived_ns;
	__u32 announced[SLOT_LANES]; // the flow's own part of the header's slots on each link, in rate units
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
	MALFORMED,     // truncated, wrong lane or kind, or addressed to nobody or somebody else
	UNKNOWN_FLOW,  // feedback for a flow that does not announce
	NOT_DELIVERED, // the ring buffer was full
	FORGED,        // a slot header that somebody else on this host made
	OTHER_VERSION, // an agent of another version made it
	BYTES,         // of carriers and feedback that left
	COUNTS,
};

// User space checks its own copies of these types against BTF, where only types of globals are.
const volatile struct feedback *const volatile feedback_in_btf;
const volatile enum count count_in_btf;

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

static __always_inline void add(__u32 what, __u64 number)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &what);

	if (value)
		*value += number;
}

static __always_inline void count(__u32 what)
{
	add(what, 1);
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

// A lane has a magnitude; its sign is a bit of `lowers`.
static __always_inline void put_change(struct slot_header *header, __u32 lane, __s64 change)
{
	__u16 lowers = bpf_ntohs(header->lowers);

	header->lowers = bpf_htons(change < 0 ? lowers | 1 << lane : lowers & ~(1 << lane));
	header->lanes[lane].amount = bpf_htonl(change < 0 ? -change : change);
}

static __always_inline __s64 change_of(const struct slot_header *header, __u32 lane)
{
	__s64 amount = bpf_ntohl(header->lanes[lane].amount);

	return bpf_ntohs(header->lowers) >> lane & 1 ? -amount : amount;
}

// Whether `planned` is of the slot that the header's lane holds.
static __always_inline bool same_slot(const struct planned *planned, const struct slot_header *header, __u32 lane)
{
	return (__u16)planned->epoch == slot_lane_epoch(header, lane);
}

// The slot at `at_ns`; 0: unknown.
static __always_inline __u32 slot_of(__u64 at_ns)
{
	__u32 zero = 0;
	struct slot_clock *clock = bpf_map_lookup_elem(&slot_clock, &zero);

	return clock && clock->slot_ns ? (at_ns - clock->epoch_ns) / clock->slot_ns : 0;
}

static __always_inline bool somebody_announces(void)
{
	__u32 zero = 0, *flows = bpf_map_lookup_elem(&announcing, &zero);

	return flows && *flows;
}

// Why a carrier is to leave.
enum occasion {
	DATA,       // the flow sends: once per slot and version of the schedule
	PROBE,      // the agent wants feedback
	WITHDRAWAL, // the flow ends: what it announced is taken back
};

// Write into the scratch header what has changed in the flow's schedule since it was announced, and note it as
// announced. False: there is nothing to send. For data that is nearly always so, and known without reading the clock
// where the kernel has stamped the packet with its departure (TCP); `stamped_ns` may be anything.
static __always_inline bool announce(const struct flow_key *flow, enum occasion occasion, __u64 stamped_ns)
{
	struct announcer *announcer = bpf_map_lookup_elem(&announcers, flow);
	struct slot_header *header;
	struct schedule *schedule;
	struct flow_key key = *flow;
	__u32 version, base, i;
	__u64 now, stamp;
	bool planned, due;

	if (!announcer)
		return false;
	key.netns = netns;
	schedule = bpf_map_lookup_elem(&schedules, &key);
	version = schedule ? schedule->version : 0;
	if (occasion == DATA && announcer->stamp == ((__u64)slot_of(stamped_ns) << 32 | version))
		return false;
	now = bpf_ktime_get_ns();
	base = slot_of(now);
	stamp = (__u64)base << 32 | version;
	if (!base || (occasion == DATA && announcer->stamp == stamp))
		return false;
	header = scratch_header(LEAVING);
	if (!header)
		return false;
	slot_header_start(header);
	header->epoch = bpf_htons(base / SLOT_LANES);
	header->first_lane = bpf_htons(base % SLOT_LANES);
	header->base_slot = bpf_htonl(base);
	header->flow = bpf_htonl(announcer->number);
	planned = schedule && !schedule->quiet && occasion != WITHDRAWAL;
	// Without a schedule, data lead no carrier, unless there is something to take back; with a quiet one they ask.
	due = occasion == PROBE ||
	      (occasion == DATA && schedule && (__s32)(schedule->base_slot + schedule->slots - base) > 0);

	bpf_spin_lock(&announcer->lock);
	if (announcer->withdrawn || (occasion == DATA && announcer->stamp == stamp)) {
		bpf_spin_unlock(&announcer->lock);
		return false; // another processor has done it
	}
	announcer->stamp = stamp;
	announcer->withdrawn = occasion == WITHDRAWAL;
	for (i = 0; i < SLOT_LANES; i++) {
		__u32 slot = base + i, lane = slot % SLOT_LANES, epoch = slot / SLOT_LANES;
		__u32 rate = 0, announced = 0, behind, at;

		asm volatile("" : "+r"(lane)); // the verifier does not know what a remainder is
		if (lane >= SLOT_LANES)
			break;
		behind = announcer->lanes[lane].epoch - epoch;
		if (behind == 1)
			continue; // the clock was set back: this slot has passed for the switches
		if (planned) {
			at = slot - schedule->base_slot;
			if (at < schedule->slots && at < SLOTS_MAX)
				rate = schedule->rates[at] / UNIT_BYTES;
		}
		if (!behind)
			announced = announcer->lanes[lane].rate;
		announcer->lanes[lane].epoch = epoch;
		announcer->lanes[lane].rate = rate;
		put_change(header, lane, (__s64)rate - announced);
		due |= rate != announced;
	}
	if (announcer->timed_slot != base) {
		announcer->timed_slot = base;
		announcer->timed_ns = 0;
		announcer->under_way = 0;
	}
	if (due && !announcer->under_way++) // else feedback of an earlier carrier could be taken for this one's
		announcer->timed_ns = now;
	bpf_spin_unlock(&announcer->lock);
	return due;
}

// The carrier with the scratch header was not made: what it announced is still to be announced.
static __always_inline void not_sent(const struct flow_key *flow)
{
	struct announcer *announcer = bpf_map_lookup_elem(&announcers, flow);
	struct slot_header *header = scratch_header(LEAVING);
	__u32 i;

	count(NOT_SENT);
	if (!announcer || !header)
		return;
	bpf_spin_lock(&announcer->lock);
	announcer->timed_ns = 0;
	if (announcer->under_way)
		announcer->under_way--;
	for (i = 0; i < SLOT_LANES; i++)
		if (same_slot(&announcer->lanes[i], header, i))
			announcer->lanes[i].rate -= change_of(header, i);
	bpf_spin_unlock(&announcer->lock);
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

// Make `skb` the carrier of the scratch header.
static __always_inline int write_carrier(struct __sk_buff *skb)
{
	struct slot_header *header = scratch_header(LEAVING);
	__be16 ethertype = bpf_htons(ETHERTYPE_SLOT);
	struct packet packet = {};

	if (!header || !read_packet(skb, &packet) || bpf_skb_change_tail(skb, packet.headers, 0) ||
	    bpf_skb_adjust_room(skb, sizeof(*header), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, header, sizeof(*header), 0))
		return TC_ACT_SHOT;
	skb->mark = MARK_CARRIER;
	skb->priority = 0; // not the class that limits the flow
	return bpf_redirect(skb->ifindex, 0);
}

// A probe becomes the carrier; nothing of it leaves as it is.
static __always_inline int write_probe(struct __sk_buff *skb, enum occasion occasion)
{
	struct packet packet = {};
	int action;

	if (!read_packet(skb, &packet) || !announce(&packet.flow, occasion, 0))
		return TC_ACT_SHOT;
	action = write_carrier(skb);
	if (action == TC_ACT_SHOT)
		not_sent(&packet.flow);
	else
		count(SENT);
	return action;
}

SEC("tc")
int carrier_egress(struct __sk_buff *skb)
{
	struct packet packet = {};

	switch (skb->mark) {
	case MARK_CLONE:
		return write_carrier(skb);
	case MARK_CARRIER:
		skb->mark = 0;
		add(BYTES, skb->len);
		return TC_ACT_UNSPEC;
	case MARK_PROBE:
		return write_probe(skb, PROBE);
	case MARK_WITHDRAWAL:
		return write_probe(skb, WITHDRAWAL);
	}
	if (ethertype_of(skb) == bpf_htons(ETHERTYPE_SLOT)) {
		count(FORGED);
		return TC_ACT_SHOT;
	}
	if (!somebody_announces() || !read_packet(skb, &packet) || !packet.payload ||
	    !announce(&packet.flow, DATA, skb->tstamp))
		return TC_ACT_UNSPEC;
	if (clone_ahead(skb))
		count(SENT);
	else
		not_sent(&packet.flow);
	return TC_ACT_UNSPEC;
}

#define CARRIED (ETH_HLEN + sizeof(struct slot_header)) // where the IP header of a carrier is

// The flow of the packet behind a slot header.
static __always_inline bool read_carried(struct __sk_buff *skb, struct flow_key *flow)
{
	struct iphdr ip;
	struct udphdr ports;

	if (bpf_skb_load_bytes(skb, CARRIED, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5)
		return false;
	if (ip.protocol != IPPROTO_TCP && ip.protocol != IPPROTO_UDP)
		return false;
	if (bpf_skb_load_bytes(skb, CARRIED + sizeof(ip), &ports, sizeof(ports)))
		return false;
	flow->source = ip.saddr;
	flow->destination = ip.daddr;
	flow->source_port = ports.source;
	flow->destination_port = ports.dest;
	flow->protocol = ip.protocol;
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

// As a switch does it; a carrier of a passed slot changes nothing.
static __always_inline void add_up(struct planned *planned, const struct slot_header *header, __u32 lane)
{
	__u16 epoch = slot_lane_epoch(header, lane);
	__u16 behind = planned->epoch - epoch;
	__s64 rate = behind ? 0 : planned->rate;

	if (behind == 1)
		return;
	rate += change_of(header, lane);
	planned->epoch = epoch;
	planned->rate = rate < 0 ? 0 : rate > 0xffffffffLL ? 0xffffffff : rate;
}

// How late a carrier has come by this host's slots: the time since its base slot began here, which is before it left
// there where the clocks differ. Feedback brings it back in that lane, where a change otherwise means nothing.
static __always_inline void note_lateness(struct slot_header *header)
{
	__u32 zero = 0, base = bpf_ntohl(header->base_slot), lane = base % SLOT_LANES;
	struct slot_clock *clock = bpf_map_lookup_elem(&slot_clock, &zero);
	__s64 late;

	asm volatile("" : "+r"(lane)); // the verifier does not know what a remainder is
	if (!clock || lane >= SLOT_LANES)
		return;
	late = (__s64)(bpf_ktime_get_ns() - clock->epoch_ns - base * clock->slot_ns) >> LATE_SHIFT;
	if (late > LATE_MAX)
		late = LATE_MAX;
	if (late < -LATE_MAX)
		late = -LATE_MAX;
	put_change(header, lane, late);
}

// Turn a carrier round: it becomes the feedback. Exchanging addresses and ports leaves the checksums right.
static __always_inline int answer(struct __sk_buff *skb, const struct flow_key *flow, struct slot_header *header)
{
	struct received *received = bpf_map_lookup_elem(&received_flows, flow);
	__u64 *sent_onward = bpf_map_lookup_elem(&onward, flow);
	__be32 addresses[2] = {flow->destination, flow->source};
	__be16 ports[2] = {flow->destination_port, flow->source_port};
	__u8 macs[2 * ETH_ALEN];
	__u32 i;

	count(RECEIVED);
	receiving = true;
	if (!received) {
		bpf_map_update_elem(&received_flows, flow, &nothing_received, BPF_NOEXIST);
		received = bpf_map_lookup_elem(&received_flows, flow);
	}
	if (received) {
		received->seen_ns = bpf_ktime_get_ns();
		for (i = 0; i < SLOT_LANES; i++)
			add_up(&received->lanes[i], header, i);
	}
	note_lateness(header);
	header->version_kind = SLOT_VERSION << 4 | SLOT_FEEDBACK;
	put48(header->bytes_received, received ? received->bytes : 0);
	put48(header->bytes_onward, sent_onward ? *sent_onward : 0);
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) ||
	    bpf_skb_store_bytes(skb, 0, macs + ETH_ALEN, ETH_ALEN, 0) ||
	    bpf_skb_store_bytes(skb, ETH_ALEN, macs, ETH_ALEN, 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, header, sizeof(*header), 0) ||
	    bpf_skb_store_bytes(skb, CARRIED + offsetof(struct iphdr, saddr), addresses, sizeof(addresses), 0) ||
	    bpf_skb_store_bytes(skb, CARRIED + sizeof(struct iphdr), ports, sizeof(ports), 0)) {
		count(NOT_SENT);
		return TC_ACT_SHOT;
	}
	count(SENT_FEEDBACK);
	skb->mark = MARK_CARRIER;
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline void deliver_feedback(const struct flow_key *flow, const struct slot_header *header)
{
	struct flow_key sent = reversed(flow);
	struct announcer *announcer = bpf_map_lookup_elem(&announcers, &sent);
	struct feedback *feedback;
	__u32 i;

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
	feedback->sent_ns = 0;
	feedback->arrived_ns = bpf_ktime_get_ns();
	feedback->header = *header;
	bpf_spin_lock(&announcer->lock);
	if (announcer->timed_slot == bpf_ntohl(header->base_slot)) {
		feedback->sent_ns = announcer->timed_ns;
		announcer->timed_ns = 0;
		if (announcer->under_way)
			announcer->under_way--;
	}
	for (i = 0; i < SLOT_LANES; i++)
		feedback->announced[i] = same_slot(&announcer->lanes[i], header, i) ? announcer->lanes[i].rate : 0;
	bpf_spin_unlock(&announcer->lock);
	bpf_ringbuf_submit(feedback, 0);
	count(RECEIVED_FEEDBACK);
}

// How far a flow has come that is being received.
static __always_inline void progress(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct received *received;
	__u32 begin, end;

	if (!read_packet(skb, &packet) || !packet.payload)
		return;
	received = bpf_map_lookup_elem(&received_flows, &packet.flow);
	if (!received)
		return;
	if (packet.flow.protocol != IPPROTO_TCP) {
		received->bytes += packet.payload;
		return;
	}
	begin = bpf_ntohl(packet.tcp.seq);
	end = begin + packet.payload;
	if (!received->started) {
		received->started = 1;
		received->highest = begin;
	}
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

	if (skb->protocol != bpf_htons(ETHERTYPE_SLOT)) {
		if (receiving)
			progress(skb);
		return TC_ACT_UNSPEC;
	}
	header = scratch_header(ARRIVING);
	if (!header || skb->pkt_type != PACKET_HOST || bpf_skb_load_bytes(skb, ETH_HLEN, header, sizeof(*header))) {
		count(MALFORMED);
		return TC_ACT_SHOT;
	}
	if (header->version_kind >> 4 != SLOT_VERSION) {
		count(OTHER_VERSION);
		return TC_ACT_SHOT;
	}
	if (bpf_ntohs(header->first_lane) >= SLOT_LANES || header->next_ethertype != bpf_htons(ETH_P_IP) ||
	    !read_carried(skb, &flow)) {
		count(MALFORMED);
		return TC_ACT_SHOT;
	}
	switch (header->version_kind & 0xf) {
	case SLOT_SCHEDULE:
		return answer(skb, &flow, header);
	case SLOT_FEEDBACK:
		deliver_feedback(&flow, header);
		break;
	default:
		count(MALFORMED);
	}
	return TC_ACT_SHOT; // consumed
}
