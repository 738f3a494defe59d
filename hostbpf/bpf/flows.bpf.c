// Lists the established IPv4 TCP sockets of a network namespace, with what MLTCP keeps in those that use it.
#include "mltcp.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define AF_INET 2
#define TCP_ESTABLISHED 1

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} CORE;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} CORE;

struct tcp_congestion_ops___named {
	char name[16];
} CORE;

struct tcp_sock___rate {
	u32 rate_delivered;
	u32 rate_interval_us;
} CORE;

struct flow_state {
	u64 netns;
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	u32 mark;
	u32 cwnd;
	u32 ssthresh;
	u32 srtt_us;
	u32 mss;
	u32 retransmitted;
	u32 delivered; // segments, in
	u32 interval_us;
	u32 marked; // segments
	u64 bytes_sent;
	u64 bytes_acked;
	u64 pacing_rate;
	u64 gain_numerator;
	u64 gain_denominator;
	char control[16];
};
const volatile struct flow_state *const volatile flow_state_in_btf; // for user space, which checks its copy

SEC("iter/tcp")
int list_flows(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct flow_state state = {};
	struct mltcp_flow flow = {};
	struct tcp_sock___rate *rate;
	struct inet_connection_sock *csk;
	struct tcp_sock *tp;

	if (!common || common->skc_family != AF_INET || common->skc_state != TCP_ESTABLISHED)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	csk = &tp->inet_conn;
	rate = (void *)tp;
	state.netns = common->skc_net.net->net_cookie;
	state.source = common->skc_rcv_saddr;
	state.destination = common->skc_daddr;
	state.source_port = bpf_htons(common->skc_num);
	state.destination_port = common->skc_dport;
	state.mark = csk->icsk_inet.sk.sk_mark;
	state.cwnd = tp->snd_cwnd;
	state.ssthresh = tp->snd_ssthresh;
	state.srtt_us = tp->srtt_us >> 3;
	state.mss = tp->mss_cache;
	state.retransmitted = tp->total_retrans;
	state.delivered = rate->rate_delivered;
	state.interval_us = rate->rate_interval_us;
	state.marked = tp->delivered_ce;
	state.bytes_sent = tp->bytes_sent;
	state.bytes_acked = tp->bytes_acked;
	state.pacing_rate = csk->icsk_inet.sk.sk_pacing_rate;
	bpf_probe_read_kernel(&flow, sizeof(flow), (void *)csk->icsk_ca_priv + MLTCP_VARIANT_SIZE);
	state.gain_numerator = flow.gain.numerator;
	state.gain_denominator = flow.gain.denominator;
	bpf_probe_read_kernel_str(state.control, sizeof(state.control),
				  ((const struct tcp_congestion_ops___named *)csk->icsk_ca_ops)->name);
	bpf_seq_write(ctx->meta->seq, &state, sizeof(state));
	return 0;
}
