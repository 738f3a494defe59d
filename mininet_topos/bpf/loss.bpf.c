// Drops packets at random, for kernels without netem. Attached at tc egress, before all other programs.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 threshold; // a packet is lost if a random 32-bit number is below this

__u64 passed;
__u64 lost;

SEC("tc")
int lose(struct __sk_buff *skb)
{
	if (bpf_get_prandom_u32() < threshold) {
		__sync_fetch_and_add(&lost, 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&passed, 1);
	return TC_ACT_UNSPEC;
}
