// Maps of each kind, globals, a ring buffer and packet programs: what the loader's tests exercise.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 increment = 1;
__u64 runs;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("tc")
int count(struct __sk_buff *skb)
{
	__u32 zero = 0, len = skb->len, *counter = bpf_map_lookup_elem(&counters, &zero);

	if (counter)
		*counter += increment;
	runs++;
	bpf_ringbuf_output(&events, &len, sizeof(len), 0);
	return TC_ACT_UNSPEC; // the next filter decides
}

SEC("tc")
int set_first_byte(struct __sk_buff *skb)
{
	__u8 value = 0xaa;

	skb->mark = skb->mark + 1;
	return bpf_skb_store_bytes(skb, 0, &value, 1, 0) ? TC_ACT_SHOT : TC_ACT_OK;
}

SEC("tc")
int drop(struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
