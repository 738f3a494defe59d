/* Types, unaligned big-endian accesses and integers wider than 64 bits. */
#ifndef SOFTSWITCH_BASE_H
#define SOFTSWITCH_BASE_H

/* Not every program uses everything here, and generated code may have unused names. */
#pragma clang diagnostic ignored "-Wunused-function"
#pragma clang diagnostic ignored "-Wunused-variable"
#pragma clang diagnostic ignored "-Wunused-but-set-variable"

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Memory is accessed at several widths, so these types must be allowed to alias. */
typedef __u8 __attribute__((may_alias)) u8;
typedef __u16 __attribute__((may_alias)) u16;
typedef __u32 __attribute__((may_alias)) u32;
typedef __u64 __attribute__((may_alias)) u64;
typedef __s64 s64;

#define INLINE static __always_inline

/* Headers keep their wire format. On the relevant architectures, BPF loads and stores need no alignment. */
#define LD8(p, o) (*((const u8 *)(p) + (o)))
#define LD16(p, o) bpf_ntohs(*(const u16 *)((const u8 *)(p) + (o)))
#define LD32(p, o) bpf_ntohl(*(const u32 *)((const u8 *)(p) + (o)))
#define LD64(p, o) bpf_be64_to_cpu(*(const u64 *)((const u8 *)(p) + (o)))
#define ST8(p, o, v) (*((u8 *)(p) + (o)) = (u8)(v))
#define ST16(p, o, v) (*(u16 *)((u8 *)(p) + (o)) = bpf_htons((u16)(v)))
#define ST32(p, o, v) (*(u32 *)((u8 *)(p) + (o)) = bpf_htonl((u32)(v)))
#define ST64(p, o, v) (*(u64 *)((u8 *)(p) + (o)) = bpf_cpu_to_be64((u64)(v)))

/* Keys and records hold native integers. */
#define RD16(p, o) (*(const u16 *)((const u8 *)(p) + (o)))
#define RD32(p, o) (*(const u32 *)((const u8 *)(p) + (o)))
#define RD64(p, o) (*(const u64 *)((const u8 *)(p) + (o)))
#define WR8(p, o, v) (*((u8 *)(p) + (o)) = (u8)(v))
#define WR16(p, o, v) (*(u16 *)((u8 *)(p) + (o)) = (u16)(v))
#define WR32(p, o, v) (*(u32 *)((u8 *)(p) + (o)) = (u32)(v))
#define WR64(p, o, v) (*(u64 *)((u8 *)(p) + (o)) = (u64)(v))

/* Hide a value's origin from the compiler, so that the verifier sees the check that follows. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/*
 * Read or write a field of the context with one instruction. The verifier requires unmodified context
 * pointers, but the compiler would share a field's address between branches.
 */
#define CTX(skb, field)                                                                     \
	({                                                                                  \
		__u64 ctx_;                                                                 \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                       \
			     : "=r"(ctx_)                                                   \
			     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, field))); \
		(__u32) ctx_;                                                               \
	})
#define CTX_SET(skb, field, value)                                                                     \
	asm volatile("*(u32 *)(%0 + %1) = %2"                                                          \
		     :                                                                                 \
		     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, field)), "r"((__u64)(value)) \
		     : "memory")

/*
 * Copy bytes `from` to `from + bytes` of the packet, of which there are 1 to `limit`, a constant. The verifiers of Linux 6.1
 * and 6.12 do not learn from a comparison with 0 that a size is not 0. So the last byte's offset is bounded here.
 * Returns 0, or a negative number.
 */
INLINE long load_bytes(struct __sk_buff *skb, u32 from, void *to, u32 bytes, u32 limit)
{
	u32 last = bytes - 1;

	OPAQUE(last);
	return last < limit ? bpf_skb_load_bytes(skb, from, to, last + 1) : -1;
}

/* The same in the other direction. */
INLINE long store_bytes(struct __sk_buff *skb, u32 at, const void *from, u32 bytes, u32 limit, u64 flags)
{
	u32 last = bytes - 1;

	OPAQUE(last);
	return last < limit ? bpf_skb_store_bytes(skb, at, from, last + 1, flags) : -1;
}

INLINE u64 shl64(u64 a, u64 n)
{
	return n < 64 ? a << n : 0;
}

INLINE u64 shr64(u64 a, u64 n)
{
	return n < 64 ? a >> n : 0;
}

INLINE s64 sar64(s64 a, u64 n)
{
	return a >> (n < 63 ? n : 63);
}

INLINE s64 sext64(u64 a, u32 bits)
{
	return (s64)(a << (64 - bits)) >> (64 - bits);
}

/* Division by zero gives 0 in BPF, and is undefined in C. */
INLINE u64 div64(u64 a, u64 b)
{
	return b ? a / b : 0;
}

INLINE u64 mod64(u64 a, u64 b)
{
	return b ? a % b : a;
}

INLINE s64 clamp64(s64 a, s64 low, s64 high)
{
	return a < low ? low : a > high ? high : a;
}

INLINE void copy_words(void *to, const void *from, u32 words)
{
#pragma unroll
	for (u32 i = 0; i < words; i++)
		((u64 *)to)[i] = ((const u64 *)from)[i];
}

INLINE void copy_many(void *to, const void *from, u32 words)
{
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < words; i++)
		((u64 *)to)[i] = ((const u64 *)from)[i];
}

INLINE void clear_words(void *to, u32 words)
{
#pragma unroll
	for (u32 i = 0; i < words; i++)
		((u64 *)to)[i] = 0;
}

/*
 * Two's complement integers of N 64-bit limbs, least significant first. The compiler picks N so that each
 * exact value fits with its sign. Whoever stores a result modulo a power of two masks it.
 */
#define EACH(N) _Pragma("unroll") for (int i = 0; i < (N); i++)
#define WIDE(N)                                                                                                  \
	struct w##N {                                                                                            \
		__u64 l[N];                                                                                      \
	};                                                                                                       \
	INLINE struct w##N w##N##_u(__u64 a)                                                                     \
	{                                                                                                        \
		struct w##N r;                                                                                   \
		EACH(N) r.l[i] = i ? 0 : a;                                                                      \
		return r;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_s(s64 a)                                                                       \
	{                                                                                                        \
		struct w##N r;                                                                                   \
		EACH(N) r.l[i] = i ? (__u64)(a >> 63) : (__u64)a;                                                \
		return r;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_add(struct w##N a, struct w##N b)                                              \
	{                                                                                                        \
		__u64 c = 0;                                                                                     \
		EACH(N)                                                                                          \
		{                                                                                                \
			__u64 s = a.l[i] + c;                                                                    \
			c = s < c;                                                                               \
			s += b.l[i];                                                                             \
			c += s < b.l[i];                                                                         \
			a.l[i] = s;                                                                              \
		}                                                                                                \
		return a;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_not(struct w##N a)                                                             \
	{                                                                                                        \
		EACH(N) a.l[i] = ~a.l[i];                                                                        \
		return a;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_sub(struct w##N a, struct w##N b)                                              \
	{                                                                                                        \
		return w##N##_add(w##N##_add(a, w##N##_not(b)), w##N##_u(1));                                    \
	}                                                                                                        \
	INLINE struct w##N w##N##_and(struct w##N a, struct w##N b)                                              \
	{                                                                                                        \
		EACH(N) a.l[i] &= b.l[i];                                                                        \
		return a;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_or(struct w##N a, struct w##N b)                                               \
	{                                                                                                        \
		EACH(N) a.l[i] |= b.l[i];                                                                        \
		return a;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_xor(struct w##N a, struct w##N b)                                              \
	{                                                                                                        \
		EACH(N) a.l[i] ^= b.l[i];                                                                        \
		return a;                                                                                        \
	}                                                                                                        \
	INLINE int w##N##_eq(struct w##N a, struct w##N b)                                                       \
	{                                                                                                        \
		__u64 d = 0;                                                                                     \
		EACH(N) d |= a.l[i] ^ b.l[i];                                                                    \
		return d == 0;                                                                                   \
	}                                                                                                        \
	INLINE int w##N##_lt(struct w##N a, struct w##N b)                                                       \
	{                                                                                                        \
		int r = 0;                                                                                       \
		EACH(N) r = a.l[i] != b.l[i] ? (i == (N) - 1 ? (s64)a.l[i] < (s64)b.l[i] : a.l[i] < b.l[i]) : r; \
		return r;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_pick(int c, struct w##N a, struct w##N b)                                      \
	{                                                                                                        \
		EACH(N) a.l[i] = c ? a.l[i] : b.l[i];                                                            \
		return a;                                                                                        \
	}                                                                                                        \
	/* One bit per round: shifts by a variable amount are rare, and a loop keeps them small. */              \
	INLINE struct w##N w##N##_shl(struct w##N a, __u64 n)                                                    \
	{                                                                                                        \
		__u64 bits = n & 63, limbs = n >> 6;                                                             \
		struct w##N r;                                                                                   \
		EACH(N)                                                                                          \
		{                                                                                                \
			__u64 low = 0, high = 0;                                                                 \
			_Pragma("unroll") for (int j = 0; j < (N); j++)                                          \
			{                                                                                        \
				if (j + limbs == (__u64)i)                                                       \
					high = a.l[j];                                                           \
				if (j + limbs + 1 == (__u64)i)                                                   \
					low = a.l[j];                                                            \
			}                                                                                        \
			r.l[i] = bits ? high << bits | low >> (64 - bits) : high;                                \
		}                                                                                                \
		return r;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_sar(struct w##N a, __u64 n)                                                    \
	{                                                                                                        \
		__u64 bits = n & 63, limbs = n >> 6, fill = (__u64)((s64)a.l[(N) - 1] >> 63);                    \
		struct w##N r;                                                                                   \
		EACH(N)                                                                                          \
		{                                                                                                \
			__u64 low = fill, high = fill;                                                           \
			_Pragma("unroll") for (int j = 0; j < (N); j++)                                          \
			{                                                                                        \
				if ((__u64)i + limbs == (__u64)j)                                                \
					low = a.l[j];                                                            \
				if ((__u64)i + limbs + 1 == (__u64)j)                                            \
					high = a.l[j];                                                           \
			}                                                                                        \
			r.l[i] = bits ? low >> bits | high << (64 - bits) : low;                                 \
		}                                                                                                \
		return r;                                                                                        \
	}                                                                                                        \
	INLINE struct w##N w##N##_mul(struct w##N a, struct w##N b)                                              \
	{                                                                                                        \
		struct w##N r = w##N##_u(0);                                                                     \
		_Pragma("unroll") for (int i = 0; i < 2 * (N); i++)                                              \
		{                                                                                                \
			__u64 carry = 0;                                                                         \
			_Pragma("unroll") for (int j = 0; i + j < 2 * (N); j++)                                  \
			{                                                                                        \
				__u64 x = (__u32)(a.l[i / 2] >> (32 * (i & 1)));                                 \
				__u64 y = (__u32)(b.l[j / 2] >> (32 * (j & 1)));                                 \
				int k = i + j;                                                                   \
				__u64 sum = x * y + (__u32)(r.l[k / 2] >> (32 * (k & 1))) + carry;               \
				carry = sum >> 32;                                                               \
				r.l[k / 2] &= ~(0xffffffffULL << (32 * (k & 1)));                                \
				r.l[k / 2] |= (sum & 0xffffffff) << (32 * (k & 1));                              \
			}                                                                                        \
		}                                                                                                \
		return r;                                                                                        \
	}

#endif
