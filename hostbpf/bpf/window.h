// What a connection's window becomes where the kernel took garbage for a decision about it. Apart, so that it can be
// tested without a socket.
#pragma once

#include <linux/types.h>

#define WINDOW_MOST (1 << 20)        // segments, 1.5 GB: no window is larger
#define WINDOW_INITIAL 10            // the kernel's, before anything was acknowledged
#define INFINITE_SSTHRESH 0x7fffffff // the kernel's, before the first decrease

struct window {
	__u32 cwnd;
	__u32 ssthresh;
};

// The window after garbage has been replaced by what the control would have `decided`; any other stays as it is.
// If garbage is what that was decided from, the threshold that the control `noted` last holds; 0: none so far.
static inline __attribute__((always_inline)) struct window window_restored(struct window window, __u32 decided,
									   __u32 noted)
{
	if (decided > WINDOW_MOST)
		decided = noted ? noted : WINDOW_INITIAL;
	if (decided < 2)
		decided = 2;
	if (window.ssthresh > WINDOW_MOST && window.ssthresh != INFINITE_SSTHRESH) {
		window.ssthresh = decided;
		if (window.cwnd > decided)
			window.cwnd = decided;
	}
	if (window.cwnd > WINDOW_MOST)
		window.cwnd = decided;
	return window;
}
