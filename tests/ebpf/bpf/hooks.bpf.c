// An iterator over the kernel's maps.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

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
