/* Generated from wire/slot_header.toml by `python -m wire`; edit that file. */
/* clang-format off */
#ifndef SLOT_HEADER_H
#define SLOT_HEADER_H

#define ETHERTYPE_SLOT 0x88b5
#define SLOT_VERSION 2
#define SLOT_LANES 10
#define SLOT_RATE_UNIT_MBPS 1
#define SLOT_SCHEDULE 1
#define SLOT_FEEDBACK 2
#define SLOT_QUERY 3

struct slot_lane {
	__be32 amount; /* schedule: by how much the flow's planned rate has changed since it last announced this slot; feedback: in the first lane, how late the carrier arrived */
	__be32 load; /* gathered: sum of the links' loads in this slot after the change, saturating */
	__be32 headroom; /* gathered: minimum over the links of capacity minus load */
} __attribute__((packed));

struct slot_header {
	__u8 version_kind; /* high, low four bits */
	__u8 hops; /* switches passed; saturates at 255 */
	__be16 next_ethertype; /* the EtherType that follows this header */
	__be16 port; /* query: the egress port whose table is read; otherwise 0 */
	__be16 epoch; /* slot div lanes, of the first slot; wraps. Lanes below first_lane hold slots of the next epoch */
	__be16 lowers; /* the lanes' signs: bit n says that the amount of lane n is taken off; query: that the lane's epoch is read instead of its load */
	__be16 first_lane; /* lane of the first slot; slot s is in lane s mod lanes */
	struct slot_lane lanes[SLOT_LANES];
	__be32 base_slot; /* number of the first slot, which is the present one; lanes hold base_slot .. base_slot + lanes - 1 */
	__be32 flow; /* the sender's number of the flow; feedback returns it */
	__u8 bytes_received[6]; /* feedback: bytes of the flow that the receiver has got (the progress of the dependency rules) */
	__u8 bytes_onward[6]; /* feedback: bytes that the receiver has itself sent onward (ring and broadcast dependencies) */
} __attribute__((packed));

_Static_assert(sizeof(struct slot_header) == 152, "slot header");

/* The epoch of the slot that `lane` holds. */
static __always_inline __u16 slot_lane_epoch(const struct slot_header *header, __u32 lane)
{
	return bpf_ntohs(header->epoch) + (lane < bpf_ntohs(header->first_lane));
}

/* What a new header holds, before its sender fills it in. */
static __always_inline void slot_header_start(struct slot_header *header)
{
	__u32 lane;

	__builtin_memset(header, 0, sizeof(*header));
	header->version_kind = 2 << 4 | 1;
	header->next_ethertype = bpf_htons(0x800);
	for (lane = 0; lane < SLOT_LANES; lane++) {
		header->lanes[lane].headroom = bpf_htonl(0xffffffff);
	}
}

#endif
