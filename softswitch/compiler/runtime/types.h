/* Sizes, and the records shared with user space. */
#ifndef SOFTSWITCH_TYPES_H
#define SOFTSWITCH_TYPES_H

#define MOST_PORTS 512
#define MOST_REPLICAS 128
#define STASHES 512
#define RATE_SHIFT 26     /* the least rate is 15 bytes/s, and 100 Gbit/s do not overflow within 10 s */
#define PACKET_ROOM 16384 /* bytes of a packet in a netless run */

/* Why the program runs. All but ARRIVAL come over the loop interface, or in a netless run from user space. */
enum kind {
	ARRIVAL,
	RESUBMITTED,   /* parse and run ingress again */
	RECIRCULATED,  /* the same, on the deparsed packet */
	INGRESS_CLONE, /* parse the pristine packet, then egress */
	EGRESS_CLONE,  /* egress with the headers, without metadata */
	REPLICA,       /* egress with headers and metadata */
};

/* BMv2's values of standard_metadata.instance_type */
enum instance {
	INSTANCE_NORMAL,
	INSTANCE_INGRESS_CLONE,
	INSTANCE_EGRESS_CLONE,
	INSTANCE_COALESCED,
	INSTANCE_RECIRCULATED,
	INSTANCE_REPLICATION,
	INSTANCE_RESUBMITTED,
};

enum statistic {
	NOT_A_PORT,
	NO_SUCH_PORT,
	PARSER_ERROR,
	PARSER_TOO_DEEP,
	DROPPED_INGRESS,
	DROPPED_EGRESS,
	DROPPED_QUEUE_FULL,
	DROPPED_ASSERTION,
	DROPPED_RESIZE,
	DROPPED_TOO_LONG,
	DROPPED_STASH,
	DROPPED_LOOP,
	DROPPED_NO_GROUP,
	DROPPED_DIGEST,
	STATISTICS,
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* BMv2's two-rate meter (src/bm_sim/meters.cpp): index 0 is the peak rate, 1 the committed one. */
struct meter {
	__u64 configured;
	struct {
		__u64 rate; /* per second */
		__u64 burst;
		__u64 tokens;
	} rates[2];
	__u64 last_us;
};

struct port {
	__u64 rate;    /* bytes per nanosecond, times 2^RATE_SHIFT; 0: no virtual queue */
	__u32 depth;   /* packets; 0: unlimited */
	__u32 ifindex; /* 0: no such port */
	__u32 queued;  /* whether frames may wait at the interface: it has a queueing discipline */
	__u32 longest; /* frame that the interface's link takes, in bytes; 0: not known */
};

/* A port's virtual queue: the packets that would wait if the port drained at its rate. */
struct queue {
	struct bpf_spin_lock lock;
	__u32 pad;
	__u64 bytes;
	__u64 packets; /* times 2^10 */
	__u64 last_ns;
};

struct lock {
	struct bpf_spin_lock lock;
	__u32 pad[15];
};

/* A ring buffer event: this head, then a digest's values or a packet. */
struct event {
	__u32 type; /* enum event_type */
	__u32 kind;
	__u32 port;
	__u32 replica;
	__u32 slot;
	__u32 tag;
	__u32 length;
	__u32 last; /* EVENT_AGAIN: 1 if the packet goes to the end of BMv2's queue */
};

enum event_type { EVENT_DIGEST, EVENT_SEND, EVENT_AGAIN };

struct replicas {
	__u32 count;
	__u32 packet_length;
	struct {
		__u32 port;
		__u32 replica;
	} to[MOST_REPLICAS];
};

#endif
