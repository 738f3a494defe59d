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

struct regaining {
	__u32 slope;
	__u32 intercept;
	__u64 sent;
	__u64 total;
	__u32 before;
	__u32 remained;
	__u32 beta;
	__u32 reserved;
	__u64 numerator;
	__u64 denominator;
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

SEC("syscall")
int regaining(struct regaining *question)
{
	struct mltcp_gain gain = mltcp_gain_of(question->slope, question->intercept, question->sent, question->total);

	gain = mltcp_regaining(gain, question->before, question->remained, question->beta);
	question->numerator = gain.numerator;
	question->denominator = gain.denominator;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
