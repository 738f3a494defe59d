// What differs from target to target.
#ifndef _TARGET_P4_
#define _TARGET_P4_

typedef bit<9> PortId_t;

#define TARGET_CPU_PORT 255
#define TARGET_METADATA

#endif
