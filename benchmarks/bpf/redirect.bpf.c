/* The least that a switch can do: send what arrives out of one other interface. The limit of any eBPF switch. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 out_ifindex = 0;

SEC("tc")
int redirect(struct __sk_buff *skb)
{
	return bpf_redirect(out_ifindex, 0);
}

char _license[] SEC("license") = "GPL";
