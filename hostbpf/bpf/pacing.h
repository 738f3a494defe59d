// What a control that paces by the schedule (slot_pacing.bpf.c) keeps with its socket.
#pragma once

#include <linux/types.h>

// At the end of the private area, behind the kernel's CUBIC and what the control has noted (`NOTED_OFFSET`).
struct pacing {
	__u64 slot_ns;   // when the slot that is paced began; 0: the flow is free
	__u64 origin_ns; // within it, from when `origin` counts
	__u64 origin;    // bytes sent then, more or less what the flow was ahead
	__u64 rate;      // since then
	__u32 window;    // while the window is closed, what it was; 0: it is open
	__u32 asked;     // low half of the bytes sent when the kernel last asked for the pace
};
#define PRIVATE_SIZE 104 // icsk_ca_priv
#define PACING_OFFSET (PRIVATE_SIZE - sizeof(struct pacing))
