// Reno: as MLTCP (`mltcp_reno`), and as a plain control in eBPF (`bpf_reno`), so that a difference between the
// two is MLTCP's and not eBPF's.
#include "mltcp.h"

char _license[] SEC("license") = "Dual MIT/GPL";

SEC("struct_ops")
void BPF_PROG(reno_init, struct sock *sk)
{
	mltcp_init(sk);
}

SEC("struct_ops")
void BPF_PROG(reno_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	mltcp_acked(sk);
}

SEC("struct_ops")
void BPF_PROG(reno_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	mltcp_reno_cong_avoid(sk, acked);
}

static __always_inline u32 decided(const struct sock *sk, u32 cwnd)
{
	return mltcp_decrease(sk, cwnd, cwnd - cwnd / 2);
}

SEC("struct_ops")
u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	return noted(sk, decided(sk, tcp_sk(sk)->snd_cwnd));
}

SEC("struct_ops")
void BPF_PROG(reno_in_ack_event, struct sock *sk, u32 flags)
{
	restore_window(sk, decided(sk, tcp_sk(sk)->prior_cwnd));
}

SEC("struct_ops")
u32 BPF_PROG(reno_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
u32 BPF_PROG(plain_ssthresh, struct sock *sk)
{
	return noted(sk, tcp_reno_ssthresh(sk));
}

SEC("struct_ops")
void BPF_PROG(plain_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_reno = {
	.init = (void *)reno_init,
	.pkts_acked = (void *)reno_pkts_acked,
	.cong_avoid = (void *)reno_cong_avoid,
	.ssthresh = (void *)reno_ssthresh,
	.in_ack_event = (void *)reno_in_ack_event,
	.undo_cwnd = (void *)reno_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "mltcp_reno",
};

SEC(".struct_ops")
struct tcp_congestion_ops bpf_reno = {
	.cong_avoid = (void *)plain_cong_avoid,
	.ssthresh = (void *)plain_ssthresh,
	.in_ack_event = (void *)reno_in_ack_event,
	.undo_cwnd = (void *)reno_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "bpf_reno",
};
