/* Generated from wire/slot_header.toml by `python -m wire`; edit that file. */
/* clang-format off */
#ifndef SLOT_HEADER_H
#define SLOT_HEADER_H

#define ETHERTYPE_SLOT 0x88b5
#define SLOT_VERSION 1
#define SLOT_LANES 10
#define SLOT_LATE_EPOCHS 2
#define SLOT_RATE_UNIT_MBPS 1
#define SLOT_SCHEDULE 1
#define SLOT_FEEDBACK 2
#define SLOT_QUERY 3

struct slot_lane {
	__be32 epoch; /* slot div lanes, of the slot that this lane announces; query: that of the stored slot */
	__be32 delta; /* schedule: change of the flow's planned rate since it last announced this slot; feedback: in the lane of base_slot, how late the carrier arrived */
	__be32 load; /* gathered: sum of the links' loads in this slot after the change, saturating */
	__be32 headroom; /* gathered: minimum over the links of capacity minus load */
} __attribute__((packed));

struct slot_header {
	__u8 version_kind; /* high, low four bits */
	__u8 hops; /* switches passed; saturates at 255 */
	__be16 next_ethertype; /* the EtherType that follows this header */
	__be32 base_slot; /* number of the present slot; lanes hold slots base_slot .. base_slot + lanes - 1, slot s in lane s mod lanes */
	__be16 port; /* query: the egress port whose table is read; otherwise 0 */
	__be32 flow; /* the sender's number of the flow; feedback returns it */
	__u8 bytes_received[6]; /* feedback: bytes of the flow that the receiver has got (the progress of the dependency rules) */
	__u8 bytes_onward[6]; /* feedback: bytes that the receiver has itself sent onward (ring and broadcast dependencies) */
	struct slot_lane lanes[SLOT_LANES];
} __attribute__((packed));

_Static_assert(sizeof(struct slot_header) == 186, "slot header");

/* What a new header holds, before its sender fills it in. */
static __always_inline void slot_header_start(struct slot_header *header)
{
	__u32 lane;

	__builtin_memset(header, 0, sizeof(*header));
	header->version_kind = 1 << 4 | 1;
	header->next_ethertype = bpf_htons(0x800);
	for (lane = 0; lane < SLOT_LANES; lane++) {
		header->lanes[lane].headroom = bpf_htonl(0xffffffff);
	}
}

#endif
