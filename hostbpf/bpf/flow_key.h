// A flow, as schedules name it. Addresses and ports are in network byte order, seen from the sender.
#pragma once

#include <linux/types.h>

struct flow_key {
	__u64 netns; // cookie of the sender's network namespace; 0 where the map belongs to one host
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 protocol;
};
