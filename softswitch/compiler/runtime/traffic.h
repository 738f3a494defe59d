/* The traffic manager: virtual queues, replication, re-injection, sending. */
#ifndef SOFTSWITCH_TRAFFIC_H
#define SOFTSWITCH_TRAFFIC_H

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} ports_by_ifindex SEC(".maps"); /* interfaces beyond shared.port_of */

#if REINJECTS
struct stash {
	__u32 tag;
	__u32 pad;
	struct phv phv;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STASHES);
	__type(key, __u32);
	__type(value, struct stash);
} stashes SEC(".maps");

/* Multicast groups by id, clone sessions by 2^31 + id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct replicas);
} replication SEC(".maps");

/* Stash headers and metadata for reinjected packets, several of which may share them. Returns 0, or -1. */
INLINE int stash(struct state *st, u32 *slot, u32 *tag)
{
	u32 ticket = __sync_fetch_and_add(&shared.stash_ticket, 1);
	u32 at = ticket % STASHES;
	struct stash *s = bpf_map_lookup_elem(&stashes, &at);

	if (!s)
		return -1;
	s->tag = ~ticket;
	barrier();
	copy_many(&s->phv, &st->phv, sizeof(struct phv) / 8);
	barrier();
	s->tag = ticket;
	*slot = at;
	*tag = ticket;
	return 0;
}
#endif

INLINE int port_of(struct __sk_buff *skb)
{
	u32 ifindex = CTX(skb, ifindex), *port;

	if (ifindex < IFINDICES)
		return (int)shared.port_of[ifindex] - 1;
	port = bpf_map_lookup_elem(&ports_by_ifindex, &ifindex);
	return port ? (int)*port : -1;
}

/*
 * Enter the port's virtual queue. Returns the depth in packets before, or -1 if the packet is lost; `delay_ns` until it
 * drains.
 */
INLINE s64 queue_enter(struct __sk_buff *skb, struct state *st, u32 port, u32 bytes, u64 *delay_ns)
{
	*delay_ns = 0;
	OPAQUE(port);
	if (port >= MOST_PORTS || (express && CTX(skb, protocol) == express))
		return 0;
	u64 rate = shared.ports[port].rate;
	u32 limit = shared.ports[port].depth, queued = shared.ports[port].queued, segments = st->phv.segments;
	if (!rate)
		return 0;
	struct queue *q = bpf_map_lookup_elem(&queues, &port);
	if (!q)
		return 0;
	u64 now = time_ns(st), delay;
	s64 depth;
	bpf_spin_lock(&q->lock);
	u64 elapsed = now > q->last_ns ? now - q->last_ns : 0;
	if (elapsed > 10000000000ULL)
		elapsed = 10000000000ULL;
	u64 drained = elapsed * rate >> RATE_SHIFT;
	if (drained >= q->bytes) {
		q->bytes = q->packets = 0;
		q->last_ns = now;
	} else if (drained) {
		q->packets -= q->packets * drained / q->bytes;
		q->bytes -= drained;
		q->last_ns = now;
	}
	depth = (q->packets + 1023) >> 10;
	delay = (q->bytes << RATE_SHIFT) / rate;
	if (limit && depth >= limit) {
		if (!queued) /* else the interface's own queue, which is as long, loses packets */
			depth = -1;
	} else {
		q->bytes += bytes;
		q->packets += (u64)segments << 10;
	}
	bpf_spin_unlock(&q->lock);
	*delay_ns = delay;
	return depth;
}

INLINE void emit_event(struct __sk_buff *skb, struct state *st, struct event head, int pristine)
{
	u8 *record;
	u32 headers = pristine ? 0 : st->written;
	u32 from = pristine ? 0 : st->phv.parsed, have = st->have;
	u32 rest = have > from ? have - from : 0;

	head.length = headers + rest;
	if (head.type == EVENT_SEND && head.length > st->phv.truncated)
		head.length = st->phv.truncated;
	if (headers > OUT || rest > PACKET_ROOM - OUT) {
		tally(DROPPED_TOO_LONG);
		return;
	}
	record = bpf_ringbuf_reserve(&events, sizeof(struct event) + PACKET_ROOM + OUT_SPARE, 0);
	if (!record) {
		tally(DROPPED_TOO_LONG);
		return;
	}
	*(struct event *)record = head;
	record += sizeof(struct event);
	if (!pristine)
		copy_many(record, st->out, OUT / 8);
	OPAQUE(headers);
	if (headers <= OUT && rest)
		load_bytes(skb, from, record + headers, rest, PACKET_ROOM - OUT);
	bpf_ringbuf_submit(record - sizeof(struct event), 0);
}

/* Reinject a copy of the packet, or with `move` the packet itself. */
INLINE int again(struct __sk_buff *skb, struct state *st, u32 kind, u32 port, u32 replica, u32 slot, u32 tag, int move)
{
	if (netless) {
		struct event head = {
			.type = EVENT_AGAIN,
			.kind = kind,
			.port = port,
			.replica = replica,
			.slot = slot,
			.tag = tag,
			.last = kind == EGRESS_CLONE || kind == RECIRCULATED || kind == RESUBMITTED,
		};
		emit_event(skb, st, head, kind != RECIRCULATED);
		return TC_ACT_SHOT;
	}
	CTX_SET(skb, cb[0], kind | port << 8);
	CTX_SET(skb, cb[1], slot);
	CTX_SET(skb, cb[2], tag);
	CTX_SET(skb, cb[3], replica);
	CTX_SET(skb, cb[4], loop_secret);
	if (move)
		return bpf_redirect(loop_ifindex, BPF_F_INGRESS);
	if (bpf_clone_redirect(skb, loop_ifindex, BPF_F_INGRESS))
		tally(DROPPED_LOOP);
	return 0;
}

#if REINJECTS
INLINE void replicate(struct __sk_buff *skb, struct state *st, u32 id, u32 kind)
{
	struct replicas *r = bpf_map_lookup_elem(&replication, &id);
	u32 slot, tag;

	if (!r) {
		tally(DROPPED_NO_GROUP);
		return;
	}
	st->phv.cut = r->packet_length;
	if (stash(st, &slot, &tag))
		return;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MOST_REPLICAS; i++) {
		if (i >= r->count)
			break;
		again(skb, st, kind, r->to[i].port, r->to[i].replica, slot, tag, 0);
	}
}
#endif

/* Whether the packet is in the account of a socket: its sender's, until the receiving host takes it. */
INLINE int has_owner(struct __sk_buff *skb)
{
	__u64 owner;

	asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(owner) : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, sk)));
	return owner != 0;
}

/*
 * Whether frames of the packet exceed the `longest` that a link takes. A veth would drop such a frame without a name,
 * and would take an offloaded packet whatever the length of its segments. They have at least the headers that were
 * written, and what segments of full size do not account for.
 */
INLINE int too_long(struct __sk_buff *skb, struct state *st, u32 longest)
{
	u32 length = CTX(skb, len), segment = CTX(skb, gso_size);

	if (length <= longest)
		return 0;
	if (!segment)
		return 1;
	u64 payload = (u64)st->phv.segments * segment;
	u64 headers = payload < length ? length - payload : 0;
	if (headers < st->written)
		headers = st->written;
	return headers + segment > longest;
}

/* Send the packet to a port. If `changed`, first replace its headers with st->out. */
INLINE int send(struct __sk_buff *skb, struct state *st, u32 port, int changed)
{
	if (!changed)
		st->written = st->phv.parsed = 0;
	if (netless) {
		struct event head = {.type = EVENT_SEND, .port = port};
		emit_event(skb, st, head, 0);
		return TC_ACT_SHOT;
	}
	OPAQUE(port);
	u32 ifindex = 0, queued = 0, longest = 0;
	if (port < MOST_PORTS) {
		ifindex = shared.ports[port].ifindex;
		queued = shared.ports[port].queued;
		longest = shared.ports[port].longest;
	}
	if (!ifindex) {
		tally(NO_SUCH_PORT);
		return TC_ACT_SHOT;
	}
	if ((changed || TRUNCATES) && rewrite(skb, st, TRUNCATES ? st->phv.truncated : ~0U)) {
		tally(DROPPED_RESIZE);
		return TC_ACT_SHOT;
	}
	if (longest && too_long(skb, st, longest)) {
		tally(DROPPED_TOO_LONG);
		OPAQUE(port);
		if (port < MOST_PORTS)
			__sync_fetch_and_add(&shared.too_long[port], 1);
		return TC_ACT_SHOT;
	}
	/* A queue in a network pushes back on no sender. So what may wait here must have no owner, as a copy has none. */
	if (queued && has_owner(skb)) {
		bpf_clone_redirect(skb, ifindex, 0);
		return TC_ACT_STOLEN;
	}
	return bpf_redirect(ifindex, 0);
}

#endif
