// What differs from chip to chip.
#ifndef _TARGET_P4_
#define _TARGET_P4_

#define TARGET_METADATA bool checksum_error;

// The port of the CPU's PCIe, and the port of a pipe over which packets come back to its ingress.
#if __TARGET_TOFINO__ == 2
#define TARGET_CPU_PORT 0
#define RECIRCULATION 7w6
#else
#ifdef TWO_PIPES
#define TARGET_CPU_PORT 192
#else
#define TARGET_CPU_PORT 320
#endif
#define RECIRCULATION 7w68
#endif

// Whether a cell's epoch, in 32 bits, is the one after a carrier's. A comparator's difference does not wrap at 16 bits. A
// Tofino 2 has a comparator left for the place where epochs wrap, a Tofino 1 has not: once in 65,536 epochs it takes a
// late carrier for one that restarts the lane.
#if __TARGET_TOFINO__ == 2
#define NOT_LATE(cell, carrier) (cell) - (carrier) != 1 && (carrier) - (cell) != 65535
#else
#define NOT_LATE(cell, carrier) (cell) - (carrier) != 1
#endif

// A queue's depth is counted in cells, of 80 or 176 bytes: 16 or 8 of them are taken for one packet.
#if __TARGET_TOFINO__ == 2
#define DEPTH_SHIFT 3
#else
#define DEPTH_SHIFT 4
#endif

#endif
