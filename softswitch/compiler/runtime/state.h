/*
 * The state of one packet's processing, and the state shared with user space. Before including this, the generated
 * file defines struct phv, struct shared and the sizes CPUS, BUFFER, OUT and KEY.
 */
#ifndef SOFTSWITCH_STATE_H
#define SOFTSWITCH_STATE_H

#define PARSE_DONE 0xffffffff
#define PARSE_DEEP 0xfffffffe

struct parsing {
	struct __sk_buff *skb;
	struct state *st;
};

struct search {
	struct state *st;
	__u64 half;
};

struct state {
	__u32 cpu;          /* set by user space */
	__u32 have;         /* bytes of the packet */
	__u32 offset;       /* the parser's offset, once it is not constant */
	__u32 written;      /* bytes in out */
	__u32 state, error; /* the parser's, once its offset is not constant */
	__u64 now;          /* time, once requested */
	__u64 best, slot;   /* of a table search */
	struct phv phv;
	__u64 key[KEY / 8];
	__u64 masked[KEY / 8 + 1];
	__u64 buffer[(BUFFER + BUFFER_SPARE) / 8];
	__u64 out[(OUT + OUT_SPARE) / 8];
	__u64 digest[DIGEST];
	__u64 chunk[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKS);
	__type(key, __u32);
	__type(value, struct lock);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* User space checks its copies of these types against BTF, which only has the types of globals. */
const volatile struct event *const volatile event_in_btf;
const volatile enum event_type event_type_in_btf;

const volatile __u32 netless;      /* write packets to `events` instead of redirecting them */
const volatile __u32 express;      /* EtherType, in network order, of frames that bypass virtual queues; 0: none */
const volatile __u32 loop_ifindex; /* packets sent to this interface come back to the program */
const volatile __u32 loop_secret;  /* marks what the program itself has sent there */
const volatile __u64 started_ns;   /* the origin of timestamps */

/* Clear struct phv from one member up to another (the marker `to`). */
#define CLEAR_TO(phv, to) clear_words(phv, __builtin_offsetof(struct phv, to) / 8)
#define CLEAR(phv, from, to) \
	clear_words((phv)->from, (__builtin_offsetof(struct phv, to) - __builtin_offsetof(struct phv, from)) / 8)

INLINE void tally(enum statistic which)
{
	__sync_fetch_and_add(&shared.statistics[which], 1);
}

INLINE u64 time_ns(struct state *st)
{
	if (!st->now)
		st->now = bpf_ktime_get_ns();
	return st->now;
}

INLINE u64 time_us(struct state *st)
{
	return (time_ns(st) - started_ns) / 1000;
}

INLINE u64 random64(void)
{
	return (u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
}

INLINE void count(struct counter *c, struct state *st)
{
	/* Count a GSO packet as its segments, which repeat the headers. */
	c->packets += st->phv.segments;
	c->bytes += st->phv.arrived + (u64)(st->phv.segments - 1) * st->phv.parsed;
}

INLINE u64 meter_execute(struct meter *m, u64 now_us, u64 amount)
{
	if (!m->configured)
		return 0;
	u64 last = m->last_us < now_us ? m->last_us : now_us;
	m->last_us = now_us;
	u64 colour = 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		/* tokens since the start, as in BMv2, so that rounding errors do not accumulate */
		u64 rate = m->rates[i].rate;
		u64 then = last / 1000000 * rate + last % 1000000 * rate / 1000000;
		u64 now = now_us / 1000000 * rate + now_us % 1000000 * rate / 1000000;
		u64 tokens = m->rates[i].tokens + (now - then);
		if (tokens > m->rates[i].burst)
			tokens = m->rates[i].burst;
		if (!colour && tokens < amount)
			colour = 2 - i;
		else if (!colour)
			tokens -= amount;
		m->rates[i].tokens = tokens;
	}
	return colour;
}

#endif
