// CUBIC: the kernel's own, wrapped. As MLTCP (`mltcp_cubic`) both of its growth laws run at rate F: acknowledged
// segments count F times (the region in which CUBIC follows Reno), and the cubic curve's clock runs F times as
// fast. Plain (`bpf_cubic`) it is the kernel's, called through eBPF.
#include "cubic.h"
#include "mltcp.h"
#include "mltcp_clock.h"

char _license[] SEC("license") = "Dual MIT/GPL";

// The kernel's state, at the beginning of the private area: 60 bytes, which end before ours begin.
struct bictcp {
	u32 last_time;   // jiffies when the curve was last looked at
	u32 epoch_start; // jiffies when it began; 0: it has not
} CORE;

SEC("struct_ops")
void BPF_PROG(mltcp_cubic_init, struct sock *sk)
{
	cubictcp_init(sk);
	mltcp_init(sk);
}

SEC("struct_ops")
void BPF_PROG(mltcp_cubic_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
	mltcp_acked(sk);
}

SEC("struct_ops")
void BPF_PROG(mltcp_cubic_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct mltcp_flow *flow = mltcp_flow_of(sk);
	struct bictcp *cubic = inet_csk_ca(sk);
	struct mltcp_gain gain =
		mltcp_regaining(flow->gain, tcp_sk(sk)->prior_cwnd, tcp_sk(sk)->snd_ssthresh, CUBIC_BETA);
	u32 looked = cubic->last_time, began = cubic->epoch_start;

	if (tcp_in_slow_start(tcp_sk(sk))) {
		cubictcp_cong_avoid(sk, ack, acked);
		return;
	}
	if (!tcp_is_cwnd_limited(sk))
		return;
	cubictcp_cong_avoid(sk, ack, mltcp_scale(&gain, &flow->credit, acked));
	if (began && cubic->epoch_start == began)
		cubic->epoch_start -= mltcp_warp(&flow->gain, &flow->variant, cubic->last_time - looked);
}

SEC("struct_ops")
u32 BPF_PROG(mltcp_cubic_ssthresh, struct sock *sk)
{
	u32 cwnd = tcp_sk(sk)->snd_cwnd, remains = cubictcp_recalc_ssthresh(sk);

	return noted(sk, remains < cwnd ? mltcp_decrease(sk, cwnd, cwnd - remains) : remains);
}

SEC("struct_ops")
void BPF_PROG(cubic_in_ack_event, struct sock *sk, u32 flags)
{
	u32 before = tcp_sk(sk)->prior_cwnd;

	restore_window(sk, mltcp_decrease(sk, before, before - cubic_decided(sk)));
}

SEC("struct_ops")
u32 BPF_PROG(cubic_ssthresh, struct sock *sk)
{
	return noted(sk, cubictcp_recalc_ssthresh(sk));
}

TX_START(cubic_tx_start, cubictcp_cwnd_event_tx_start)

SEC("struct_ops")
u32 BPF_PROG(cubic_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_cubic = {
	.init = (void *)mltcp_cubic_init,
	.pkts_acked = (void *)mltcp_cubic_pkts_acked,
	.cong_avoid = (void *)mltcp_cubic_cong_avoid,
	.ssthresh = (void *)mltcp_cubic_ssthresh,
	.set_state = (void *)cubic_set_state,
	.tx_start = (void *)cubic_tx_start,
	.in_ack_event = (void *)cubic_in_ack_event,
	.undo_cwnd = (void *)cubic_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "mltcp_cubic",
};

SEC(".struct_ops")
struct tcp_congestion_ops bpf_cubic = {
	.init = (void *)cubic_init,
	.pkts_acked = (void *)cubic_pkts_acked,
	.cong_avoid = (void *)cubic_cong_avoid,
	.ssthresh = (void *)cubic_ssthresh,
	.set_state = (void *)cubic_set_state,
	.tx_start = (void *)cubic_tx_start,
	.in_ack_event = (void *)cubic_in_ack_event,
	.undo_cwnd = (void *)cubic_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "bpf_cubic",
};
