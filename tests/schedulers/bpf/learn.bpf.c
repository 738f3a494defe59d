// Runs mltcp.h's learning on the kernel's eBPF: one acknowledgement, parameters and state in a map.
#include "mltcp.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct question {
	struct mltcp_params params;
	struct mltcp_job job;
	u64 now;
	u64 size;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct question);
} question SEC(".maps");

SEC("syscall")
int acknowledge(void *unused)
{
	u32 zero = 0;
	struct question *asked = bpf_map_lookup_elem(&question, &zero);
	struct mltcp_job *job;

	if (!asked)
		return 1;
	// As in mltcp_acked, which needs a socket.
	job = &asked->job;
	mltcp_advance(&asked->params, job, job->last_ack_ns, asked->now);
	job->last_ack_ns = asked->now;
	job->bytes += asked->size;
	return 0;
}
