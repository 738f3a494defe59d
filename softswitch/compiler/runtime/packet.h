/* Reading, resizing and rewriting the packet itself. */
#ifndef SOFTSWITCH_PACKET_H
#define SOFTSWITCH_PACKET_H

#define ETHERNET 14 /* bytes of the Ethernet header, the minimum that an interface sends */
#define KEPT 18     /* most bytes at the front that adjust_room keeps: Ethernet and a VLAN tag */

/* At most 256 bytes. May write past the last byte, up to a multiple of 8. */
INLINE void copy_bytes(void *to, const void *from, u32 bytes)
{
	copy_words(to, from, (bytes + 7) / 8);
}

/* The kernel removes the outermost VLAN tag before tc sees the packet: put it back. */
INLINE int restore_vlan(struct __sk_buff *skb)
{
	u32 proto = CTX(skb, vlan_proto), tci = CTX(skb, vlan_tci);
	u8 addresses[12];
	u16 tag[2] = {proto, bpf_htons((u16)tci)};

	if (bpf_skb_vlan_pop(skb) || bpf_skb_load_bytes(skb, 0, addresses, 12) || bpf_skb_change_head(skb, 4, 0))
		return -1;
	return bpf_skb_store_bytes(skb, 0, addresses, 12, 0) || bpf_skb_store_bytes(skb, 12, tag, 4, 0);
}

/*
 * bpf_skb_adjust_room requires that the packet's protocol be IP, which it often is not here. Popping a VLAN tag
 * sets the protocol from the bytes after the tag. So push two tags (the first is then in the packet), write the
 * required protocol after it, pop both, and restore the bytes.
 */
INLINE int pretend_ipv4(struct __sk_buff *skb)
{
	u16 kept, ipv4 = bpf_htons(0x0800);

	if (bpf_skb_load_bytes(skb, 12, &kept, 2))
		return -1;
	if (bpf_skb_vlan_push(skb, bpf_htons(0x8100), 1) || bpf_skb_vlan_push(skb, bpf_htons(0x8100), 1))
		return -1;
	if (bpf_skb_store_bytes(skb, 16, &ipv4, 2, 0))
		return -1;
	if (bpf_skb_vlan_pop(skb) || bpf_skb_vlan_pop(skb))
		return -1;
	return bpf_skb_store_bytes(skb, 12, &kept, 2, 0);
}

/*
 * Resize the packet to `length` bytes, at least ETHERNET, with arbitrary content. The kernel refuses to cut into
 * headers that it knows: recognized headers, those with a checksum or VLAN tag pending, and those that the program
 * has put something in front of. So this grows the packet at its end, cuts off its front with these headers, and
 * then cuts its end.
 */
INLINE int remake(struct __sk_buff *skb, u32 length)
{
	/* the most that adjust_room cuts off at once, and the least that it leaves */
	const u32 cut = 1024, left = KEPT + 40;
	u16 tag[3] = {bpf_htons(0x8100), 0, bpf_htons(0x0800)};

	if (bpf_skb_change_tail(skb, 4 + cut + left + length, 0))
		return -1;
	/* Popping a tag that is in the packet moves the kernel's network header back to the end of Ethernet. */
	if (bpf_skb_vlan_push(skb, bpf_htons(0x8100), 1) || bpf_skb_vlan_push(skb, bpf_htons(0x8100), 1))
		return -1;
	if (bpf_skb_store_bytes(skb, 16, tag, sizeof(tag), 0))
		return -1;
	if (bpf_skb_vlan_pop(skb) || bpf_skb_vlan_pop(skb) || bpf_skb_vlan_pop(skb))
		return -1;
	if (bpf_skb_adjust_room(skb, -(int)cut, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	return bpf_skb_change_tail(skb, length, 0);
}

/* Rebuild a short packet: st->out, then `payload` bytes (at most 256) from byte `from` of the current packet. */
INLINE int write_short(struct __sk_buff *skb, struct state *st, u32 from, u32 payload)
{
	u32 written = st->written;

	if (payload && load_bytes(skb, from, st->chunk, payload, 256))
		return -1;
	if (remake(skb, written + payload))
		return -1;
	return payload ? store_bytes(skb, written, st->chunk, payload, 256, 0) : 0;
}

/* Remove `bytes` from the packet's front. Returns 1 if it is too short for adjust_room, -1 on error. */
INLINE int shrink(struct __sk_buff *skb, struct state *st, u32 bytes)
{
	/* adjust_room leaves at least an IPv4 (or IPv6) header */
	u32 protocol = CTX(skb, protocol), rest = CTX(skb, len) - bytes, written = st->written;

	if (rest < KEPT + 20)
		return 1;
	if (protocol != bpf_htons(0x0800) && (protocol != bpf_htons(0x86dd) || rest < KEPT + 40) && pretend_ipv4(skb))
		return -1;
	/* It removes them after the bytes that it keeps: rewrite these, from the payload if there is no header. */
	OPAQUE(written);
	if (written < KEPT) {
		if (load_bytes(skb, st->phv.parsed, (u8 *)st->out + written, KEPT - written, KEPT))
			return -1;
		st->written = KEPT;
	}
	return bpf_skb_adjust_room(skb, -(int)bytes, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET);
}

/*
 * Replace the packet's first `parsed` bytes with st->out, and cut the packet to `most` bytes. The rest does not move
 * if the kernel can avoid it, so offloads stay correct. Fails if less than an Ethernet header is left.
 */
INLINE int rewrite(struct __sk_buff *skb, struct state *st, u32 most)
{
	u32 parsed = st->phv.parsed, payload = CTX(skb, len) - parsed, written;
	int failed = 0;

	if (st->written > most)
		st->written = most;
	written = st->written;
	if (payload > most - written) {
		payload = most - written;
		failed = bpf_skb_change_tail(skb, parsed + payload, 0) ? 1 : 0;
	}
	if (written + payload < ETHERNET)
		return -1;
	if (!failed && written > parsed)
		failed = bpf_skb_change_head(skb, written - parsed, 0);
	else if (!failed && written < parsed)
		failed = shrink(skb, st, parsed - written);
	if (failed > 0)
		failed = write_short(skb, st, parsed, payload);
	if (failed)
		return -1;
	written = st->written;
	return written ? store_bytes(skb, 0, st->out, written, OUT, BPF_F_RECOMPUTE_CSUM) : 0;
}

#if SUMS_PAYLOAD
/* The needed members of the kernel's packet. The loader relocates them to this kernel's layout. */
struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/*
 * Return whether the kernel or the device has yet to complete the packet's transport checksum (CHECKSUM_PARTIAL:
 * from a local socket, with offload). So far it covers only the pseudo header.
 */
INLINE int sum_unfinished(struct __sk_buff *skb)
{
	if (netless)
		return 0;
	return BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff *)skb, ip_summed) == 3;
}
#endif

/* Return the one's complement sum of everything after the parsed headers. */
struct payload_walk {
	struct __sk_buff *skb;
	struct state *st;
	u32 at, end;
	u64 sum;
};

static long payload_step(u32 index, struct payload_walk *walk)
{
	u32 rest = walk->end - walk->at;

	if (walk->end <= walk->at)
		return 1;
	u64 *chunk = walk->st->chunk;
	if (rest >= 512) {
		if (bpf_skb_load_bytes(walk->skb, walk->at, chunk, 512))
			return 1;
		walk->sum += (u32)bpf_csum_diff(0, 0, (__be32 *)chunk, 512, 0);
		walk->at += 512;
		return 0;
	}
	clear_words(chunk, 64);
	if (load_bytes(walk->skb, walk->at, chunk, rest, 511))
		return 1;
	walk->sum += (u32)bpf_csum_diff(0, 0, (__be32 *)chunk, 512, 0);
	walk->at = walk->end;
	return 1;
}

INLINE void csum16_payload(struct hash *h, struct __sk_buff *skb, struct state *st)
{
	u32 have = st->have, parsed = st->phv.parsed;
	u32 limit = st->phv.truncated;
	struct payload_walk walk = {.skb = skb, .st = st, .at = parsed, .end = have};

	if (have > parsed && have - parsed > limit)
		walk.end = parsed + limit;
	bpf_loop(256, payload_step, &walk, 0);
	u64 sum = csum16_fold(walk.sum);
	sum = bpf_ntohs((u16)sum); /* summed in the order of the bytes in memory */
	h->value += h->count & 1 ? (sum >> 8 | (sum & 0xff) << 8) : sum;
	h->count += have - parsed;
}

#endif
