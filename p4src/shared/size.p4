// Every size in one place: what fits a Tofino 1 pipe with room to spare.
#ifndef _SIZE_P4_
#define _SIZE_P4_

#define MAX_PORTS 512            // all values of PortId_t
#define MAX_VRFS 1024
#define VRF_TABLE_SIZE 512       // a port has one VRF
#define ROUTE_TABLE_SIZE 16384   // (VRF, prefix)
#define SOURCE_ROUTE_TABLE_SIZE 2048
#define ARP_TABLE_SIZE 4096      // hosts that a leaf answers for
#define ECMP_TABLE_SIZE 256      // groups
#define ECMP_MEMBERS 1024
#define ECMP_GROUP_MAX 64        // members of one group
#define LINK_TABLE_SIZE 512

#endif
