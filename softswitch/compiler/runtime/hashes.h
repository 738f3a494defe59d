/* BMv2's calculations, byte by byte: begin, step, end. Bit-exact with src/bm_sim/calculations.cpp. */
#ifndef SOFTSWITCH_HASHES_H
#define SOFTSWITCH_HASHES_H

struct hash {
	__u64 value;
	__u32 count;
};

/* An index into a table of 256. The verifier needs the mask even if the compiler does not. */
INLINE u64 place(u64 value)
{
	OPAQUE(value);
	return value & 0xff;
}

INLINE struct hash crc16_begin(void)
{
	return (struct hash){};
}

INLINE void crc16_byte(struct hash *h, u64 byte)
{
	h->value = h->value >> 8 ^ crc16_table[place(h->value ^ byte)];
}

INLINE u64 crc16_end(struct hash *h)
{
	return h->value;
}

INLINE struct hash crc32_begin(void)
{
	return (struct hash){.value = 0xffffffff};
}

INLINE void crc32_byte(struct hash *h, u64 byte)
{
	h->value = h->value >> 8 ^ crc32_table[place(h->value ^ byte)];
}

INLINE u64 crc32_end(struct hash *h)
{
	return h->value ^ 0xffffffff;
}

INLINE struct hash crc_ccitt_begin(void)
{
	return (struct hash){.value = 0xffff};
}

INLINE void crc_ccitt_byte(struct hash *h, u64 byte)
{
	h->value = (h->value << 8 & 0xff00) ^ crc_ccitt_table[place(h->value >> 8 ^ byte)];
}

INLINE u64 crc_ccitt_end(struct hash *h)
{
	return h->value;
}

INLINE struct hash csum16_begin(void)
{
	return (struct hash){};
}

INLINE void csum16_byte(struct hash *h, u64 byte)
{
	h->value += h->count++ & 1 ? byte : byte << 8;
}

/* Four bytes. 2^32, and 2^24 where the position is odd, are powers of 2^16 or 2^8 apart, so folding does the rest. */
INLINE void csum16_word(struct hash *h, u64 word)
{
	h->value += h->count & 1 ? (word >> 24 | (word & 0xffffff) << 8) : word;
	h->count += 4;
}

INLINE u64 csum16_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

INLINE u64 csum16_end(struct hash *h)
{
	return ~csum16_fold(h->value) & 0xffff;
}

INLINE struct hash xor16_begin(void)
{
	return (struct hash){};
}

INLINE void xor16_byte(struct hash *h, u64 byte)
{
	h->value ^= h->count++ & 1 ? byte : byte << 8;
}

INLINE u64 xor16_end(struct hash *h)
{
	return h->value;
}

INLINE struct hash identity_begin(void)
{
	return (struct hash){};
}

INLINE void identity_byte(struct hash *h, u64 byte)
{
	if (h->count++ < 8)
		h->value = h->value << 8 | byte;
}

INLINE u64 identity_end(struct hash *h)
{
	return h->value;
}

INLINE struct hash random_begin(void)
{
	return (struct hash){};
}

INLINE void random_byte(struct hash *h, u64 byte)
{
}

INLINE u64 random_end(struct hash *h)
{
	return bpf_get_prandom_u32();
}

#endif
