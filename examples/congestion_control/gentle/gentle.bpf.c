// Reno that gives up an eighth of its window on loss, not half of it.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

// Only the fields in use. CO-RE finds the kernel's own layout at load time: no vmlinux.h is needed.
struct sock {
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 snd_cwnd;
} __attribute__((preserve_access_index));

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	__u32 flags;
};

// The kernel's own Reno does the rest.
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops")
__u32 BPF_PROG(ssthresh, struct sock *sk)
{
	__u32 window = ((struct tcp_sock *)sk)->snd_cwnd;

	window -= window / 8;
	return window > 2 ? window : 2;
}

SEC("struct_ops")
void BPF_PROG(cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

// The name of the entry point, of this variable, and of the control are one.
SEC(".struct_ops")
struct tcp_congestion_ops gentle = {
	.ssthresh = (void *)ssthresh,
	.cong_avoid = (void *)cong_avoid,
	.undo_cwnd = (void *)undo_cwnd,
	.flags = 1, // TCP_CONG_NON_RESTRICTED: for everybody, not only root
	.name = "gentle",
};

char _license[] SEC("license") = "GPL";
