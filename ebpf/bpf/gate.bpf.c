// What stands at an interface in place of a program, on kernels without tcx links. The kernel empties a program array
// when no process has it open any longer. So the program behind the gate ends with its process, even if that is killed,
// as it would behind a link; the gate itself passes all packets until it is removed.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} behind SEC(".maps");

SEC("tc")
int gate(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &behind, 0);
	return TC_ACT_UNSPEC;
}
