// What a connection's window becomes where the kernel took garbage for a decision about it. Apart, so that it can be
// tested without a socket.
#pragma once

#include <linux/types.h>

#define WINDOW_MOST (1 << 24)        // segments; no window is larger
#define INFINITE_SSTHRESH 0x7fffffff // the kernel's, before the first decrease

struct window {
	__u32 cwnd;
	__u32 ssthresh;
};

// The window after garbage has been replaced by what the control would have `decided`; any other stays as it is.
static inline __attribute__((always_inline)) struct window window_restored(struct window window, __u32 decided)
{
	if (decided < 2)
		decided = 2;
	if (decided > WINDOW_MOST)
		decided = WINDOW_MOST;
	if (window.ssthresh > WINDOW_MOST && window.ssthresh != INFINITE_SSTHRESH) {
		window.ssthresh = decided;
		if (window.cwnd > decided)
			window.cwnd = decided;
	}
	if (window.cwnd > WINDOW_MOST)
		window.cwnd = decided;
	return window;
}
