/* The least that a switch can do: send what arrives out of one other interface. The limit of any eBPF switch. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 out_ifindex = 0;
const volatile __u32 copies = 0; /* send a copy of what a socket owns, as a switch does where packets may wait */

SEC("tc")
int redirect(struct __sk_buff *skb)
{
	if (copies && skb->sk) {
		bpf_clone_redirect(skb, out_ifindex, 0);
		return TC_ACT_STOLEN;
	}
	return bpf_redirect(out_ifindex, 0);
}

char _license[] SEC("license") = "GPL";
