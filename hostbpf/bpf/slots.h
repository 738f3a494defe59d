// Slot rates: a flow's schedule, and when its next byte may leave. The kernel side reads the clock and the schedule
// itself at every departure, so nothing in user space is on a slot boundary's critical path.
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "flow_key.h"

#define SLOTS_MAX 32 // longest horizon

// What makes a flow keep to its schedule: its own socket, or what its packets meet at the interface.
enum enforcer { ENFORCER_PACING, ENFORCER_EDT, ENFORCER_HTB };
const volatile enum enforcer enforcer_in_btf; // BTF has types of globals only; user space checks its copy

// Rates of successive slots. Before the first and after the last slot the flow is not limited, so a schedule that
// nobody renews ends by itself.
struct schedule {
	__s64 start_ns; // CLOCK_MONOTONIC, when the first slot begins; negative: before the machine's start
	__u64 slot_ns;
	__u32 slots;
	__u32 base_slot; // number of the first slot
	__u32 version;   // changes with every change of a rate
	__u8 enforcer;   // enum enforcer
	__u8 woken;      // somebody wakes the flow after silence (hostbpf/rates/sockets.py)
	__u8 quiet;      // it is not announced: carriers only ask
	__u8 reserved;
	__u64 rates[SLOTS_MAX]; // bytes per second; 0: silence
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct schedule);
} schedules SEC(".maps");

// The index of the slot at `now`; SLOTS_MAX where the schedule does not cover it.
static inline __attribute__((always_inline)) __u32 slot_at(const struct schedule *schedule, __u64 now)
{
	__u64 index;

	if (!schedule->slot_ns || (__s64)now < schedule->start_ns)
		return SLOTS_MAX;
	index = (now - schedule->start_ns) / schedule->slot_ns;
	return index < schedule->slots && index < SLOTS_MAX ? index : SLOTS_MAX;
}

#define NSEC_PER_SEC 1000000000ULL

// Nanoseconds from `now` until the next departure of `burst` bytes, when `due` bytes have to be allowed before it
// in the present slot. Where that leads into later slots, a slot that allows at least one burst begins half a burst
// after its start, so that it is off by half a burst at most; slower ones are filled up by what is still due, so
// that they are right on average. It ends with the schedule at the latest, and where a silent slot begins if somebody
// wakes the flow.
//
// A function of its own, so that the verifier looks at its loop once.
__attribute__((noinline)) __u64 slots_delay(const struct schedule *schedule, __u64 now, __u64 due, __u64 burst)
{
	__u64 at = now, left = due * NSEC_PER_SEC; // byte nanoseconds per second
	__u32 first, i;

	if (!schedule)
		return 0;
	first = slot_at(schedule, now);
	for (i = 0; i < SLOTS_MAX; i++) {
		__u32 index = first + i;
		__u64 end, allowed, rate;

		asm volatile("" : "+r"(index)); // keeps the bounds check on the register that is used
		if (index >= SLOTS_MAX || index >= schedule->slots)
			break;
		rate = schedule->rates[index];
		if (i && !rate && schedule->woken)
			break;
		end = schedule->start_ns + (index + 1) * schedule->slot_ns;
		if (end <= at)
			continue;
		if (i && rate * schedule->slot_ns >= burst * NSEC_PER_SEC)
			left = burst * (NSEC_PER_SEC / 2);
		allowed = rate * (end - at);
		if (allowed > left)
			return at + left / rate - now;
		left -= allowed;
		at = end;
	}
	return at - now;
}
