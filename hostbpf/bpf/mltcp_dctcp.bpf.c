// DCTCP (RFC 8257): as MLTCP (`mltcp_dctcp`), and as a plain control in eBPF (`bpf_dctcp`). Both ends of a
// connection have to choose it before they connect or listen: it asks for ECN already in the handshake.
#include "mltcp.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define ALPHA_UNIT 1024
#define ALPHA_SHIFT 4 // g = 1/16

struct dctcp {
	u32 alpha; // moving average of the share of marked segments, in 1/1024
	u32 round_end;
	u32 delivered;
	u32 delivered_ce;
	u32 loss_cwnd;
	bool received_ce; // the last segment was marked
};

static __always_inline void new_round(const struct tcp_sock *tp, struct dctcp *dctcp)
{
	dctcp->round_end = tp->snd_nxt;
	dctcp->delivered = tp->delivered;
	dctcp->delivered_ce = tp->delivered_ce;
}

static __always_inline void dctcp_begin(struct sock *sk)
{
	struct dctcp *dctcp = inet_csk_ca(sk);

	dctcp->alpha = ALPHA_UNIT;
	dctcp->loss_cwnd = 0;
	dctcp->received_ce = false;
	new_round(tcp_sk(sk), dctcp);
}

// The share of marks, once per round trip.
static __always_inline void update_alpha(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *dctcp = inet_csk_ca(sk);
	u32 marked, delivered, alpha = dctcp->alpha, decay = alpha >> ALPHA_SHIFT;

	if ((s32)(tp->snd_una - dctcp->round_end) < 0)
		return;
	marked = tp->delivered_ce - dctcp->delivered_ce;
	delivered = tp->delivered - dctcp->delivered;
	alpha -= decay ? decay : alpha;
	if (marked && delivered) {
		alpha += (u64)marked * (ALPHA_UNIT >> ALPHA_SHIFT) / delivered;
		if (alpha > ALPHA_UNIT)
			alpha = ALPHA_UNIT;
	}
	dctcp->alpha = alpha;
	new_round(tp, dctcp);
}

static __always_inline void demand_cwr(struct sock *sk, bool ce)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (ce)
		tp->ecn_flags |= TCP_ECN_DEMAND_CWR;
	else
		tp->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
}

// The receiver's half. Acknowledgements may be delayed, but not where the mark changes: what came before is then
// acknowledged with the segment that changed it, and has its mark. So a segment too many counts as marked at the
// beginning of a row of marks, and one too few at its end. The kernel's DCTCP acknowledges what came before by itself
// (bpf_tcp_send_ack).
static __always_inline void receive(struct sock *sk, bool ce)
{
	struct dctcp *dctcp = inet_csk_ca(sk);

	if (ce != dctcp->received_ce)
		inet_csk(sk)->icsk_ack.pending |= ICSK_ACK_NOW;
	dctcp->received_ce = ce;
	demand_cwr(sk, ce);
}

static __always_inline void react_to_loss(struct sock *sk)
{
	struct dctcp *dctcp = inet_csk_ca(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u32 half = tp->snd_cwnd / 2;

	dctcp->loss_cwnd = tp->snd_cwnd;
	tp->snd_ssthresh = half > 2 ? half : 2;
}

// By how much a window of `cwnd` falls when marks came.
static __always_inline u32 marked_decrease(const struct sock *sk, u32 cwnd)
{
	const struct dctcp *dctcp = inet_csk_ca(sk);

	return (u64)cwnd * dctcp->alpha / (2 * ALPHA_UNIT);
}

SEC("struct_ops")
void BPF_PROG(dctcp_init, struct sock *sk)
{
	dctcp_begin(sk);
	mltcp_init(sk);
}

SEC("struct_ops")
void BPF_PROG(dctcp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	mltcp_acked(sk);
}

SEC("struct_ops")
void BPF_PROG(dctcp_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	mltcp_reno_cong_avoid(sk, acked);
}

SEC("struct_ops")
u32 BPF_PROG(dctcp_ssthresh, struct sock *sk)
{
	struct dctcp *dctcp = inet_csk_ca(sk);

	dctcp->loss_cwnd = tcp_sk(sk)->snd_cwnd;
	return noted(sk, mltcp_decrease(sk, dctcp->loss_cwnd, marked_decrease(sk, dctcp->loss_cwnd)));
}

SEC("struct_ops")
void BPF_PROG(dctcp_in_ack_event, struct sock *sk, u32 flags)
{
	u32 before = tcp_sk(sk)->prior_cwnd;

	restore_window(sk, mltcp_decrease(sk, before, marked_decrease(sk, before)));
	update_alpha(sk);
}

SEC("struct_ops")
void BPF_PROG(dctcp_set_state, struct sock *sk, u8 state)
{
	if (state == TCP_CA_Recovery && BPF_CORE_READ_BITFIELD(inet_csk(sk), icsk_ca_state) != TCP_CA_Recovery)
		react_to_loss(sk);
}

SEC("struct_ops")
void BPF_PROG(dctcp_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	switch (event) {
	case CA_EVENT_ECN_IS_CE:
	case CA_EVENT_ECN_NO_CE:
		receive(sk, event == CA_EVENT_ECN_IS_CE);
		break;
	case CA_EVENT_LOSS:
		react_to_loss(sk);
		break;
	default:
		break;
	}
}

SEC("struct_ops")
u32 BPF_PROG(dctcp_undo_cwnd, struct sock *sk)
{
	const struct dctcp *dctcp = inet_csk_ca(sk);
	u32 cwnd = tcp_sk(sk)->snd_cwnd;

	return cwnd > dctcp->loss_cwnd ? cwnd : dctcp->loss_cwnd;
}

SEC("struct_ops")
void BPF_PROG(plain_init, struct sock *sk)
{
	dctcp_begin(sk);
}

SEC("struct_ops")
void BPF_PROG(plain_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
u32 BPF_PROG(plain_ssthresh, struct sock *sk)
{
	struct dctcp *dctcp = inet_csk_ca(sk);
	u32 cwnd;

	dctcp->loss_cwnd = tcp_sk(sk)->snd_cwnd;
	cwnd = dctcp->loss_cwnd - marked_decrease(sk, dctcp->loss_cwnd);
	return noted(sk, cwnd > 2 ? cwnd : 2);
}

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_dctcp = {
	.init = (void *)dctcp_init,
	.pkts_acked = (void *)dctcp_pkts_acked,
	.cong_avoid = (void *)dctcp_cong_avoid,
	.ssthresh = (void *)dctcp_ssthresh,
	.in_ack_event = (void *)dctcp_in_ack_event,
	.set_state = (void *)dctcp_set_state,
	.cwnd_event = (void *)dctcp_cwnd_event,
	.undo_cwnd = (void *)dctcp_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED | TCP_CONG_NEEDS_ECN,
	.name = "mltcp_dctcp",
};

SEC(".struct_ops")
struct tcp_congestion_ops bpf_dctcp = {
	.init = (void *)plain_init,
	.cong_avoid = (void *)plain_cong_avoid,
	.ssthresh = (void *)plain_ssthresh,
	.in_ack_event = (void *)dctcp_in_ack_event,
	.set_state = (void *)dctcp_set_state,
	.cwnd_event = (void *)dctcp_cwnd_event,
	.undo_cwnd = (void *)dctcp_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED | TCP_CONG_NEEDS_ECN,
	.name = "bpf_dctcp",
};
