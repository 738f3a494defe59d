// Runs window.h on the kernel's eBPF: what goes in and comes out is in the context.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "window.h"

struct question {
	struct window window;
	__u32 decided, noted;
};

SEC("syscall")
int restore(struct question *question)
{
	question->window = window_restored(question->window, question->decided, question->noted);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
