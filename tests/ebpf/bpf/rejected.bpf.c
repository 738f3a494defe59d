// A program that the verifier must reject: it reads the packet without comparing with its end.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("tc")
int careless(struct __sk_buff *skb)
{
	__u8 *first = (void *)(long)skb->data;

	return *first;
}

char _license[] SEC("license") = "GPL";
