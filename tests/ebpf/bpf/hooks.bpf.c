// Programs for hooks other than tc: a control group's sockets, and an iterator.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

__u64 connects;

SEC("sockops")
int count_connects(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		__sync_fetch_and_add(&connects, 1);
	return 1;
}

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_map {
	unsigned int id;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
} __attribute__((preserve_access_index));

SEC("iter/bpf_map")
int list_maps(struct bpf_iter__bpf_map *ctx)
{
	struct bpf_map *map = ctx->map;
	unsigned int id;

	if (!map)
		return 0;
	id = map->id;
	bpf_seq_write(ctx->meta->seq, &id, sizeof(id));
	return 0;
}

char _license[] SEC("license") = "GPL";
