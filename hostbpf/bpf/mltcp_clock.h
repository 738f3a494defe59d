// The clock of CUBIC's curve under MLTCP, in jiffies. Apart, so that it can be tested without a socket and for any rate.
#pragma once

#include "mltcp_gain.h"

const volatile __u32 hz; // the kernel's jiffies per second (hostbpf.mltcp.jiffies_per_second)

// A longer pause between two growths is idleness, which CUBIC skips itself. While the window grows, CUBIC looks at its
// curve every 31 ms (hz / 32) at least.
#define MLTCP_LONGEST_STEP_MS 64

// By how many jiffies the curve has to begin earlier for the last `jiffies` to count F times. `rest` keeps what rounding
// leaves, in jiffies / MLTCP_UNIT.
static inline __attribute__((always_inline)) __s32 mltcp_warp(const struct mltcp_gain *gain, __s32 *rest, __u32 jiffies)
{
	__u32 f;
	__s32 shift;

	if (!gain->denominator || jiffies > MLTCP_LONGEST_STEP_MS * hz / 1000)
		return 0;
	f = gain->numerator * MLTCP_UNIT / gain->denominator;
	*rest += ((__s32)f - MLTCP_UNIT) * (__s32)jiffies;
	shift = *rest >> 10; // rounds down, as / does not
	*rest &= MLTCP_UNIT - 1;
	return shift;
}
