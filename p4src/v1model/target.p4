// What differs from target to target.
#ifndef _TARGET_P4_
#define _TARGET_P4_

typedef bit<9> PortId_t;

#define TARGET_CPU_PORT 255
#define TARGET_METADATA bool owed;  // answers a carrier that came to the port where it comes from

// The epoch of the slot that lane n holds. Neither needs a variable, as `?:` does: a switch in software clears every
// variable for every packet.
#define LANE_EPOCH(n) (hdr.slot.epoch + (bit<16>)(16w##n - hdr.slot.first_lane)[15:15])
#define LEAST(a, b) ((a) |-| ((a) |-| (b)))

#endif
