// The kernel's CUBIC, for controls that wrap it: what they leave as it is. The kernel lets a control in eBPF call these
// functions, but not name them as its own operations.
#pragma once

#include "tcp_ca.h"

extern void cubictcp_init(struct sock *sk) __ksym;
extern u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, u32 ack, u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, u8 new_state) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;

#if TX_START_OPERATION
extern void cubictcp_cwnd_event_tx_start(struct sock *sk) __ksym;
#else
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;

static __always_inline void cubictcp_cwnd_event_tx_start(struct sock *sk)
{
	cubictcp_cwnd_event(sk, CA_EVENT_TX_START);
}
#endif

#define CUBIC_BETA 717 // of 1024: what remains of the window at a loss

// What the kernel's CUBIC leaves of the window before the last decrease (`restore_window`).
static __always_inline u32 cubic_decided(const struct sock *sk)
{
	return (u64)tcp_sk(sk)->prior_cwnd * CUBIC_BETA / 1024;
}

SEC("struct_ops")
void BPF_PROG(cubic_init, struct sock *sk)
{
	cubictcp_init(sk);
}

SEC("struct_ops")
void BPF_PROG(cubic_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(cubic_set_state, struct sock *sk, u8 state)
{
	cubictcp_state(sk, state);
}

SEC("struct_ops")
void BPF_PROG(cubic_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
}
