// Records that Python reads as well: what the checks against BTF are tried on.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum colour { RED, GREEN = 4 };

struct inner {
	__u16 low;
	__u16 high;
};

struct record {
	struct bpf_spin_lock lock;
	__u32 number;
	__u64 time_ns;
	char name[8];
	struct inner parts[2];
	const __u8 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");

enum colour colour;

SEC("tc")
int look(struct __sk_buff *skb)
{
	return colour == GREEN;
}

char _license[] SEC("license") = "GPL";
