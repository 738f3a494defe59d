// Runs mltcp_clock.h on the kernel's eBPF, and reads the kernel's clocks: what goes in and comes out is in the context.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mltcp_clock.h"

struct step {
	__u64 numerator;
	__u64 denominator;
	__s32 rest;
	__u32 jiffies;
	__s32 shift;
	__u32 reserved;
};

struct clocks {
	__u64 jiffies;
	__u64 monotonic_ns;
};

SEC("syscall")
int warp(struct step *step)
{
	struct mltcp_gain gain = {.numerator = step->numerator, .denominator = step->denominator};
	__s32 rest = step->rest;

	step->shift = mltcp_warp(&gain, &rest, step->jiffies);
	step->rest = rest;
	return 0;
}

SEC("syscall")
int read_clocks(struct clocks *clocks)
{
	clocks->jiffies = bpf_jiffies64();
	clocks->monotonic_ns = bpf_ktime_get_ns();
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
