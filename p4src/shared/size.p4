// Every size in one place: what fits a Tofino 1 pipe with room to spare.
#ifndef _SIZE_P4_
#define _SIZE_P4_

#define JOBS 64                  // that have a VRF at once
#define JOB_HOSTS 64             // hosts of all jobs

#define MAX_PORTS 512            // all values of PortId_t
#define MAX_VRFS 1024
#define VRF_TABLE_SIZE 512       // a port has one VRF
#define ROUTE_TABLE_SIZE (4 * JOBS * JOB_HOSTS)          // (VRF, prefix): every job on every host fills a quarter
#define SOURCE_ROUTE_TABLE_SIZE (JOB_HOSTS * JOB_HOSTS)  // (port of a link, host): a spine full of virtual spines
#define HOST_TABLE_SIZE 4096     // hosts of the fabric, that a leaf answers for
#define ECMP_TABLE_SIZE 256      // groups
#define ECMP_MEMBERS 1024
#define ECMP_GROUP_MAX 64        // members of one group
#define LINK_TABLE_SIZE 512

#endif
