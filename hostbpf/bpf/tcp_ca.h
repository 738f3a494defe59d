// What a congestion control in eBPF needs of the kernel: the fields that we use, found by CO-RE at load, so
// that no generated vmlinux.h is needed. Only the names matter, not the order.
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "window.h"

#define CORE __attribute__((preserve_access_index))

struct netns_ipv4 {
	u8 sysctl_tcp_tso_rtt_log;
	u8 sysctl_tcp_slow_start_after_idle;
} CORE;

struct net {
	u64 net_cookie;
	struct netns_ipv4 ipv4;
} CORE;

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
} CORE;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	u32 sk_pacing_status; // enum sk_pacing
	u32 sk_mark;
	u16 sk_gso_max_segs;
	unsigned int sk_gso_max_size;
} CORE;

struct inet_sock {
	struct sock sk;
} CORE;

struct tcp_congestion_ops;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	u8 icsk_ca_state : 5;
	struct {
		u8 pending;
	} icsk_ack;
	u64 icsk_ca_priv[13];
} CORE;

struct minmax_sample {
	u32 t;
	u32 v;
} CORE;

struct minmax {
	struct minmax_sample s[3];
} CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct minmax rtt_min; // microseconds
	u32 snd_cwnd;
	u32 snd_cwnd_cnt;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 srtt_us;
	u32 mss_cache;
	u32 packets_out;
	u32 max_packets_out;
	u32 snd_nxt;
	u32 snd_una;
	u32 rcv_nxt;
	u32 delivered;
	u32 delivered_ce;
	u32 app_limited;
	u32 total_retrans;
	u64 bytes_acked;
	u64 bytes_sent;
	u8 ecn_flags;
	u8 is_cwnd_limited : 1;
} CORE;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
} CORE;

struct rate_sample;

enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};

enum { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };
enum { ICSK_ACK_TIMER = 2, ICSK_ACK_NOW = 16 };
enum { TCP_ECN_OK = 1, TCP_ECN_DEMAND_CWR = 4 };
enum { SK_PACING_NONE, SK_PACING_NEEDED, SK_PACING_FQ };
enum {
	TCP_CONG_NON_RESTRICTED = 1, // usable without CAP_NET_ADMIN and as a namespace's default
	TCP_CONG_NEEDS_ECN = 2,
};

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
#if TX_START_OPERATION
	void (*cwnd_event_tx_start)(struct sock *sk);
#endif
	void (*in_ack_event)(struct sock *sk, u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	u32 (*min_tso_segs)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

// Define operation `name`, which calls `action(sk)` when a connection without packets in flight sends again. Its member
// of struct tcp_congestion_ops is `tx_start`. The loader defines TX_START_OPERATION: whether the kernel has an operation
// for this (7.3 has, 6.18 has not). If not, it is an event.
#if TX_START_OPERATION
#define tx_start cwnd_event_tx_start
#define TX_START(name, action)               \
	SEC("struct_ops")                    \
	void BPF_PROG(name, struct sock *sk) \
	{                                    \
		action(sk);                  \
	}
#else
#define tx_start cwnd_event
#define TX_START(name, action)                                        \
	SEC("struct_ops")                                             \
	void BPF_PROG(name, struct sock *sk, enum tcp_ca_event event) \
	{                                                             \
		if (event == CA_EVENT_TX_START)                       \
			action(sk);                                   \
	}
#endif

extern u32 tcp_slow_start(struct tcp_sock *tp, u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, u32 w, u32 acked) __ksym;
extern u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked) __ksym;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

static __always_inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline struct inet_connection_sock *inet_csk(const struct sock *sk)
{
	return (struct inet_connection_sock *)sk;
}

// The congestion control's own 104 bytes in the socket.
static __always_inline void *inet_csk_ca(const struct sock *sk)
{
	return (void *)inet_csk(sk)->icsk_ca_priv;
}

static __always_inline bool tcp_in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

// As in the kernel: in slow start the window may be raised while it is less than twice what was in flight.
static __always_inline bool tcp_is_cwnd_limited(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited)) // a plain read of a bit-field is not relocated
		return true;
	return tcp_in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

// Where in the private area the threshold is that the control has decided last: behind the kernel's CUBIC (60 bytes).
#define NOTED_OFFSET 60

static __always_inline u32 *noted_ssthresh(const struct sock *sk)
{
	return inet_csk_ca(sk) + NOTED_OFFSET;
}

// What an operation `ssthresh` returns goes through here, for `restore_window`.
static __always_inline u32 noted(const struct sock *sk, u32 ssthresh)
{
	*noted_ssthresh(sk) = ssthresh;
	return ssthresh;
}

// How many windows `restore_window` has restored.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} restored_windows SEC(".maps");

// Call it on every acknowledgement. A kernel that skips a struct_ops program takes for the result of `ssthresh` or
// `undo_cwnd` what the stack holds, such as an address, and goes on with billions of segments. Linux itself skips none,
// but some kernels are patched not to run eBPF in the context of process 1, where acknowledgements are processed like
// anywhere else. What the control would have `decided` for the window before (`prior_cwnd`) holds instead.
static __always_inline void restore_window(struct sock *sk, u32 decided)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct window now = {.cwnd = tp->snd_cwnd, .ssthresh = tp->snd_ssthresh};
	struct window restored = window_restored(now, decided, *noted_ssthresh(sk));
	u32 only = 0;
	u64 *count;

	if (restored.ssthresh == now.ssthresh && restored.cwnd == now.cwnd)
		return;
	tp->snd_ssthresh = restored.ssthresh;
	tp->snd_cwnd = restored.cwnd;
	count = bpf_map_lookup_elem(&restored_windows, &only);
	if (count)
		__sync_fetch_and_add(count, 1);
}
