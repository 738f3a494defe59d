// Runs mltcp_gain.h on the kernel's eBPF: what goes in and comes out is in the context.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mltcp_gain.h"

struct question {
	__u32 slope;
	__u32 intercept;
	__u64 sent;
	__u64 total;
	__u64 credit;
	__u32 acked;
	__u32 growth;
};

struct decrease {
	__u32 slope;
	__u32 intercept;
	__u64 sent;
	__u64 total;
	__u32 scaled;
	__u32 window;
	__u32 decrease;
	__u32 remains;
};

SEC("syscall")
int scale(struct question *question)
{
	struct mltcp_gain gain = mltcp_gain_of(question->slope, question->intercept, question->sent, question->total);
	__u64 credit = question->credit;

	question->growth = mltcp_scale(&gain, &credit, question->acked);
	question->credit = credit;
	return 0;
}

SEC("syscall")
int decrease(struct decrease *question)
{
	struct mltcp_gain gain = mltcp_gain_of(question->slope, question->intercept, question->sent, question->total);

	question->remains = mltcp_decreased(&gain, question->scaled, question->window, question->decrease);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
