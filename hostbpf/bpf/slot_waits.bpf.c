// Why flows that pace themselves left late: the gaps between a flow's departures that are longer than its pacing rate
// asks for, with what the kernel says held it back. Attached at tc egress beside the meter; changes nothing.
#include "packet.h"
#include "pacing.h"

#include <bpf/bpf_core_read.h>

#define CORE __attribute__((preserve_access_index))

char _license[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 tolerance_ns = 30000; // shorter waits are not told

struct sock {
	unsigned long sk_pacing_rate;
} CORE;

struct inet_sock {
	struct sock sk;
} CORE;

struct tcp_congestion_ops {
	char name[16];
} CORE;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u64 icsk_ca_priv[PRIVATE_SIZE / sizeof(__u64)];
} CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_nxt;
	__u64 bytes_sent;
	__u32 write_seq;
	__u8 chrono_type : 2; // enum tcp_chrono
	__u8 is_cwnd_limited : 1;
} CORE;

enum tcp_chrono { TCP_CHRONO_RWND_LIMITED = 2 };

enum cause {
	WAIT_PROCESSOR, // nothing of TCP's: the timer of the departure, or the process, came late
	WAIT_DATA,      // the sender had written nothing more
	WAIT_RECEIVER,  // the receiver's window was full
	WAIT_WINDOW,    // the congestion window was
	WAIT_REPEATED,  // no wait: bytes that left for a second time
	WAIT_UNASKED,   // the kernel did not ask the control for the pace: bytes that left so, and the wait behind them
};
const volatile enum cause cause_in_btf; // BTF has types of globals only; user space checks its copy

struct wait {
	__u64 from_ns; // CLOCK_MONOTONIC, when the flow was due
	__u64 until_ns;
	__u32 bytes; // that left then
	__u32 cause;
};
const volatile struct wait wait_in_btf;

struct wait_of_flow {
	struct flow_key flow;
	struct wait wait;
};

struct departure {
	__u64 due_ns;  // of the next one
	__u32 unsent;  // behind it
	__u32 highest; // sequence number so far
	__u32 unasked; // whether it left without asking for the pace
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct departure);
} departures SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} waits SEC(".maps");

static inline __attribute__((always_inline)) void tell(const struct packet *packet, enum cause cause, __u64 from,
						       __u64 until)
{
	struct wait_of_flow *told = bpf_ringbuf_reserve(&waits, sizeof(*told), 0);

	if (!told)
		return;
	told->flow = packet->flow;
	told->wait = (struct wait){from, until, packet->payload, cause};
	bpf_ringbuf_submit(told, BPF_RB_NO_WAKEUP);
}

// Whether a control that is paced by a schedule was not asked before `packet`: the kernel asks before it begins to send,
// and sends one packet at that pace. Some kernels skip eBPF in the context of process 1.
static inline __attribute__((always_inline)) bool unasked(const struct tcp_sock *tp, const struct packet *packet)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	const struct pacing *pacing = (const void *)&icsk->icsk_ca_priv[PACING_OFFSET / sizeof(__u64)];
	const char *name = icsk->icsk_ca_ops->name;

	if (name[0] != 's' || name[1] != 'l' || name[2] != 'o' || name[3] != 't' || name[4] != '_')
		return false;
	return pacing->slot_ns && (__u32)tp->bytes_sent - packet->payload != pacing->asked;
}

SEC("tc")
int explain(struct __sk_buff *skb)
{
	struct departure *before, after = {};
	struct packet packet = {};
	struct bpf_sock *full;
	struct tcp_sock *tp;
	__u64 now, rate;
	__u32 end;

	if (!read_packet(skb, &packet) || packet.flow.protocol != IPPROTO_TCP || !packet.payload || !skb->sk)
		return TC_ACT_UNSPEC;
	full = bpf_sk_fullsock(skb->sk);
	if (!full)
		return TC_ACT_UNSPEC;
	tp = bpf_skc_to_tcp_sock(full);
	if (!tp)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	end = bpf_ntohl(packet.tcp.seq) + packet.payload;
	before = bpf_map_lookup_elem(&departures, &packet.flow);
	if (before && now > before->due_ns + tolerance_ns) {
		// What the socket says of itself is still from when it could send no more.
		enum cause cause = before->unasked                                                      ? WAIT_UNASKED
				   : BPF_CORE_READ_BITFIELD(tp, chrono_type) == TCP_CHRONO_RWND_LIMITED ? WAIT_RECEIVER
				   : BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited)                        ? WAIT_WINDOW
				   : before->unsent < packet.payload                                    ? WAIT_DATA
								     : WAIT_PROCESSOR;

		tell(&packet, cause, before->due_ns, now);
	}
	if (before && (__s32)(end - before->highest) <= 0) {
		tell(&packet, WAIT_REPEATED, now, now);
		end = before->highest;
	}
	after.unasked = unasked(tp, &packet);
	if (after.unasked)
		tell(&packet, WAIT_UNASKED, now, now);
	// The pace is an old one, so all time until the next departure is a wait.
	rate = after.unasked ? 0 : tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
	after.due_ns = now + (rate ? packet.payload * 1000000000ULL / rate : 0);
	after.unsent = tp->write_seq - end;
	after.highest = end;
	bpf_map_update_elem(&departures, &packet.flow, &after, BPF_ANY);
	return TC_ACT_UNSPEC;
}
