// Slot rates by socket pacing: congestion controls that obey the schedule of their flow, for every kernel (no fq
// needed). The kernel asks `min_tso_segs` before every transmission; there the pacing rate is set so that the
// next departure comes when the schedule has allowed what was sent. Within a slot the loop is closed over the bytes
// that really left; across slots nothing is carried over.
//
// A socket that sleeps until its next departure cannot be woken earlier, and every wake-up is a transmission. So in a
// silent slot a flow that somebody wakes (hostbpf/rates/sockets.py) does not sleep: its window is closed instead.
#include "cubic.h"
#include "pacing.h"
#include "slots.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define UNPACED (~0UL)
#define LONGEST_BURST 65536
#define DEFAULT_SEGMENTS 2 // the kernel's, without us
#define PACING_SHIFT 10    // the kernel's
#define TCP 6
#define USEC_PER_SEC 1000000ULL
#define ACK_NS 20000000ULL // acknowledgements may wait so long for a processor of the receiver
#define QUEUED_MAX 131072  // bytes of a scheduled flow that may queue before a loss counts as congestion

_Static_assert(NOTED_OFFSET + sizeof(u32) <= PACING_OFFSET, "what a control notes has its own place");

static __always_inline struct schedule *schedule_of(const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;
	struct flow_key key = {
		.netns = common->skc_net.net->net_cookie,
		.source = common->skc_rcv_saddr,
		.destination = common->skc_daddr,
		.source_port = bpf_htons(common->skc_num),
		.destination_port = common->skc_dport,
		.protocol = TCP,
	};

	return bpf_map_lookup_elem(&schedules, &key);
}

// How many segments the kernel will send at once at `rate`, by the rule of its tcp_tso_autosize: a millisecond's
// worth, and more at tiny round-trip times.
static __always_inline u32 autosize(const struct sock *sk, u64 rate)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 bytes = rate >> PACING_SHIFT;
	u32 distance, segments;

	if (bpf_core_field_exists(struct netns_ipv4, sysctl_tcp_tso_rtt_log)) { // Linux 5.18
		distance = tp->rtt_min.s[0].v >> sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_tso_rtt_log;
		if (distance < 32)
			bytes += sk->sk_gso_max_size >> distance;
	}
	if (bytes >
	    sk->sk_gso_max_size) // the kernel makes packets as long as it is told (6.10), and the device cuts them up
		bytes = sk->sk_gso_max_size;
	segments = bytes / tp->mss_cache;
	if (segments > sk->sk_gso_max_segs)
		segments = sk->sk_gso_max_segs;
	return segments ? segments : 1;
}

static __always_inline struct pacing *pacing_of(const struct sock *sk)
{
	return inet_csk_ca(sk) + PACING_OFFSET;
}

static __always_inline void open_window(struct sock *sk)
{
	struct pacing *pacing = pacing_of(sk);

	if (!pacing->window)
		return;
	tcp_sk(sk)->snd_cwnd = pacing->window;
	pacing->window = 0;
}

// Let nothing more be sent. The kernel takes a window of 0 only while nothing is lost or on its way, and only if it does
// not shrink windows after a pause; it has the real one while it works on an acknowledgement (`in_ack_event`).
static __always_inline bool close_window(struct sock *sk)
{
	struct pacing *pacing = pacing_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	if (BPF_CORE_READ_BITFIELD(inet_csk(sk), icsk_ca_state) != TCP_CA_Open ||
	    sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_slow_start_after_idle)
		return false;
	if (!pacing->window)
		pacing->window = tp->snd_cwnd;
	tp->snd_cwnd = tp->packets_out;
	return true;
}

// The window (segments) with which a flow can send at `rate` for as long as acknowledgements may wait.
static __always_inline u32 window_for(const struct tcp_sock *tp, u64 rate)
{
	return rate * ((tp->srtt_us >> 3) * 1000ULL + ACK_NS) / NSEC_PER_SEC / tp->mss_cache + 2;
}

static __always_inline u32 larger(u32 a, u32 b)
{
	return a > b ? a : b;
}

// The window that a scheduled flow keeps at a loss while hardly anything of it queues; 0: the loss is congestion. The
// schedule has made room for the flow, so a loss without a queue is chance (a bit error), and says nothing about the path.
// No more than the schedule needs: what slow start has piled up beyond that may be the reason of the loss.
static __always_inline u32 window_kept(const struct sock *sk)
{
	const struct pacing *pacing = pacing_of(sk);
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 rtt_us = tp->srtt_us >> 3, least_us = tp->rtt_min.s[0].v;

	if (!pacing->slot_ns || !rtt_us)
		return 0;
	if (rtt_us > least_us && pacing->rate * (rtt_us - least_us) > (u64)QUEUED_MAX * USEC_PER_SEC)
		return 0;
	return window_for(tp, pacing->rate);
}

// Whether the kernel decides by itself what may be in flight: it sends lost segments again, or reduces the window.
static __always_inline bool in_reduction(const struct sock *sk)
{
	u8 state = BPF_CORE_READ_BITFIELD(inet_csk(sk), icsk_ca_state);

	return state == TCP_CA_Recovery || state == TCP_CA_CWR;
}

// A new rate is a new promise that there is room for it: the window shall not be what limits the flow. If there is no
// room after all, the next loss halves the window as ever, until the next slot.
static __always_inline void widen_window(struct sock *sk, u64 rate)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (BPF_CORE_READ_BITFIELD(inet_csk(sk), icsk_ca_state) == TCP_CA_Open)
		tp->snd_cwnd = larger(tp->snd_cwnd, window_for(tp, rate));
	else if (in_reduction(sk))
		tp->snd_ssthresh = larger(tp->snd_ssthresh, window_kept(sk));
}

// While it sends lost segments again, the kernel keeps in flight what was in flight when it noticed the loss (RFC 6937):
// what the rate of that time needs. At random loss a large window always has some to send again, so a flow would not
// come up to a higher rate. If the loss is chance, the window that was decided on (`ssthresh`) holds at once; the rate
// still paces it.
static __always_inline void keep_window(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 window;

	if (!in_reduction(sk))
		return;
	window = window_kept(sk);
	if (window > tp->snd_ssthresh)
		window = tp->snd_ssthresh;
	tp->snd_cwnd = larger(tp->snd_cwnd, window);
}

// Where the rate changes within a slot, what counts is from now on; a flow keeps at most a burst that it is ahead.
static __always_inline void change_rate(struct pacing *pacing, u64 now, u64 sent, u64 rate, u64 burst)
{
	s64 ahead = (s64)(sent - pacing->origin) - (s64)(pacing->rate * (now - pacing->origin_ns) / NSEC_PER_SEC);

	if (ahead > (s64)burst)
		ahead = burst;
	if (ahead < -(s64)burst)
		ahead = -(s64)burst;
	pacing->origin_ns = now;
	pacing->origin = sent - ahead;
	pacing->rate = rate;
}

// Set the pace of what is about to be sent; returns the fewest segments to send at once.
static __always_inline u32 pace(struct sock *sk)
{
	struct pacing *pacing = pacing_of(sk);
	struct schedule *schedule = schedule_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u64 now, sent = tp->bytes_sent, burst, rate, allowed, delay, slot_ns;
	u32 index, segments;
	bool changed;
	s64 ahead;

	pacing->asked = sent;
	now = bpf_ktime_get_ns();
	index = schedule && schedule->enforcer == ENFORCER_PACING ? slot_at(schedule, now) : SLOTS_MAX;
	if (index >= SLOTS_MAX) {
		if (pacing->slot_ns) { // it was limited until now
			pacing->slot_ns = 0;
			open_window(sk);
			sk->sk_pacing_status = SK_PACING_NONE;
			sk->sk_pacing_rate = UNPACED;
		}
		return DEFAULT_SEGMENTS;
	}
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;

	rate = schedule->rates[index];
	segments = autosize(sk, rate);
	burst = segments * tp->mss_cache;

	slot_ns = schedule->start_ns + index * schedule->slot_ns;
	changed = slot_ns != pacing->slot_ns || rate > pacing->rate;
	if (slot_ns != pacing->slot_ns) {
		bool follows = slot_ns - pacing->slot_ns == schedule->slot_ns;

		pacing->origin_ns = follows ? slot_ns : now;
		pacing->origin = sent;
		pacing->slot_ns = slot_ns;
		pacing->rate = rate;
	} else if (rate != pacing->rate) {
		change_rate(pacing, now, sent, rate, burst);
	}
	if (!rate && schedule->woken && close_window(sk))
		return segments;
	open_window(sk);
	if (changed)
		widen_window(sk, rate);
	keep_window(sk);
	allowed = rate * (now - pacing->origin_ns) / NSEC_PER_SEC;
	ahead = (s64)(sent - pacing->origin) + burst / 2 - (s64)allowed;
	// The application had nothing to send: no burst to make up for it. Else the processor was late.
	if (ahead < -(s64)(tp->app_limited ? LONGEST_BURST : 8 * LONGEST_BURST)) {
		pacing->origin_ns = now;
		pacing->origin = sent;
		ahead = burst / 2;
	}
	if (ahead < -(s64)(burst / 2)) // catch up at twice the rate at most
		ahead = -(s64)(burst / 2);
	delay = slots_delay(schedule, now, burst + ahead, burst);
	sk->sk_pacing_rate = delay ? burst * NSEC_PER_SEC / delay : UNPACED;
	if (!sk->sk_pacing_rate)
		sk->sk_pacing_rate = 1;
	return segments;
}

SEC("struct_ops")
u32 BPF_PROG(slot_min_tso_segs, struct sock *sk)
{
	return pace(sk);
}

SEC("struct_ops")
void BPF_PROG(reno_in_ack, struct sock *sk, u32 flags)
{
	open_window(sk);
	restore_window(sk, larger(window_kept(sk), tcp_sk(sk)->prior_cwnd / 2));
}

SEC("struct_ops")
void BPF_PROG(cubic_in_ack, struct sock *sk, u32 flags)
{
	open_window(sk);
	restore_window(sk, larger(window_kept(sk), cubic_decided(sk)));
}

SEC("struct_ops")
void BPF_PROG(slot_release, struct sock *sk)
{
	open_window(sk);
}

SEC("struct_ops")
u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	open_window(sk);
	return noted(sk, larger(window_kept(sk), tcp_reno_ssthresh(sk)));
}

SEC("struct_ops")
void BPF_PROG(reno_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
u32 BPF_PROG(undo_cwnd, struct sock *sk)
{
	open_window(sk);
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
u32 BPF_PROG(cubic_ssthresh, struct sock *sk)
{
	open_window(sk);
	return noted(sk, larger(window_kept(sk), cubictcp_recalc_ssthresh(sk)));
}

// Something leaves all the same (a probe): it may be lost.
TX_START(reno_tx_start, open_window)

static __always_inline void start_cubic(struct sock *sk)
{
	open_window(sk);
	cubictcp_cwnd_event_tx_start(sk);
}

TX_START(cubic_tx_start, start_cubic)

SEC(".struct_ops")
struct tcp_congestion_ops slot_reno = {
	.ssthresh = (void *)reno_ssthresh,
	.tx_start = (void *)reno_tx_start,
	.cong_avoid = (void *)reno_cong_avoid,
	.undo_cwnd = (void *)undo_cwnd,
	.min_tso_segs = (void *)slot_min_tso_segs,
	.in_ack_event = (void *)reno_in_ack,
	.release = (void *)slot_release,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "slot_reno",
};

SEC(".struct_ops")
struct tcp_congestion_ops slot_cubic = {
	.init = (void *)cubic_init,
	.ssthresh = (void *)cubic_ssthresh,
	.cong_avoid = (void *)cubic_cong_avoid,
	.set_state = (void *)cubic_set_state,
	.tx_start = (void *)cubic_tx_start,
	.pkts_acked = (void *)cubic_pkts_acked,
	.undo_cwnd = (void *)undo_cwnd,
	.min_tso_segs = (void *)slot_min_tso_segs,
	.in_ack_event = (void *)cubic_in_ack,
	.release = (void *)slot_release,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "slot_cubic",
};
