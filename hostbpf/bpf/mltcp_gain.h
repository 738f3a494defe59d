// F(bytes_ratio) in integers. Apart, so that it can be tested without a socket.
#pragma once

#include <linux/types.h>

#define MLTCP_UNIT 1024 // slope and intercept are in units of 1/1024

// F as a fraction: F(r) = slope * r + intercept, r = min(1, sent / total). No overflow up to a total of 2^40 bytes
// and a slope and an intercept of 8.
struct mltcp_gain {
	__u64 numerator;
	__u64 denominator; // 0: F is 1
};

static inline __attribute__((always_inline)) struct mltcp_gain mltcp_gain_of(__u32 slope, __u32 intercept, __u64 sent,
									     __u64 total)
{
	struct mltcp_gain gain = {};

	if (!total)
		return gain;
	if (sent > total)
		sent = total;
	gain.numerator = slope * sent + intercept * total;
	gain.denominator = MLTCP_UNIT * total;
	return gain;
}

// What remains of a window that is to be decreased by `decrease` segments, divided by F if `scaled`. A quarter of the
// window, and two segments, always remain.
static inline __attribute__((always_inline)) __u32 mltcp_decreased(const struct mltcp_gain *gain, int scaled,
								   __u32 window, __u64 decrease)
{
	__u32 most = window - window / 4;

	if (scaled && gain->numerator && gain->denominator)
		decrease = decrease * gain->denominator / gain->numerator;
	if (decrease > most)
		decrease = most;
	window -= decrease;
	return window > 2 ? window : 2;
}

// The gain after a window of `before` segments was decreased to `remained`, for CUBIC's growth where it follows Reno. To
// have as large a window as Reno on average, that growth is 3 (1 - beta) / (1 + beta) segments per round trip, where
// beta remains at a loss (RFC 9438, 4.3). With scaled decreases less may have remained than `beta` / 1024. What was given
// up beyond that is then regained as fast as a CUBIC with that beta would do it.
static inline __attribute__((always_inline)) struct mltcp_gain mltcp_regaining(struct mltcp_gain gain, __u32 before,
									       __u32 remained, __u32 beta)
{
	__u64 ratio; // of the two growths, in 1/64

	if ((__u64)remained * MLTCP_UNIT >= (__u64)before * beta)
		return gain;
	ratio = (__u64)(before - remained) * (MLTCP_UNIT + beta) * 64;
	ratio /= (__u64)(before + remained) * (MLTCP_UNIT - beta);
	gain.denominator = gain.denominator * 64 / ratio;
	return gain;
}

// F times `acked` segments, rounded down; what rounding leaves is carried over in `credit`, so that nothing of
// the growth is lost.
static inline __attribute__((always_inline)) __u32 mltcp_scale(const struct mltcp_gain *gain, __u64 *credit,
							       __u32 acked)
{
	__u64 growth;

	if (!gain->denominator)
		return acked;
	if (acked > 256) // more segments than one acknowledgement can cover; bounds the product
		acked = 256;
	if (*credit >= gain->denominator) // the total was changed under way
		*credit = 0;
	*credit += gain->numerator * acked;
	growth = *credit / gain->denominator;
	*credit -= growth * gain->denominator;
	return growth;
}
