// SPDX-License-Identifier: Apache-2.0
// How a training process tells its host's scheduler how far it is: the flows that it sends and receives, in one
// file of shared memory. For NCCL network plugins, parameter-server libraries and whatever else moves gradients; C
// and C++, Linux, no library. wire/progress.py has the same layout for Python, docs/monitor.md the rules.
//
//     struct entrain_publisher publisher;
//     struct entrain_flow_progress *sent;
//
//     if (entrain_progress_open(&publisher, "my-job", 64) == 0)
//         sent = entrain_progress_socket(&publisher, fd, ENTRAIN_SENT, ENTRAIN_RING, 0, chunk_bytes);
//     ...
//     entrain_progress_update(sent, iteration, ENTRAIN_COMMUNICATING, total, ready, done);
//     ...
//     entrain_progress_close(&publisher);
//
// One thread at a time writes an entry; different entries need no lock between them. Numbers are little-endian.
//
// The process keeps its file locked until it ends: so the agent knows that it lives, in whatever container. The lock
// is a record lock (fcntl(2), F_SETLK), which a forked child does not inherit: a child that wants to publish opens a
// file of its own. Never open the file a second time: closing any of its descriptors gives up the lock.
#ifndef ENTRAIN_PROGRESS_H
#define ENTRAIN_PROGRESS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the layout is little-endian"
#endif

#define ENTRAIN_PROGRESS_MAGIC "ENTRPROG"
#define ENTRAIN_PROGRESS_VERSION 2
#define ENTRAIN_PROGRESS_CAPACITY_MAX 1024
#define ENTRAIN_PROGRESS_DIRECTORY "/run/entrain/progress" // unless $ENTRAIN_PROGRESS names another

enum entrain_direction { ENTRAIN_UNUSED = 0, ENTRAIN_SENT = 1, ENTRAIN_RECEIVED = 2 };

// What a flow does in its collective, and so whose progress it follows.
enum entrain_role {
	ENTRAIN_FREE = 0,
	ENTRAIN_AGGREGATION = 1, // worker to parameter server
	ENTRAIN_BROADCAST = 2,   // parameter server to worker
	ENTRAIN_RING = 3,        // to the successor in a ring
};

enum entrain_phase { ENTRAIN_COMPUTING = 0, ENTRAIN_COMMUNICATING = 1 };

struct entrain_progress_header {
	char magic[8];
	uint32_t version;
	uint32_t capacity; // entries in the file
	uint32_t used;     // entries that were ever in use, from the first on; grows
	uint32_t pid;      // in the process's own PID namespace
	uint64_t reserved0;
	uint64_t netns; // cookie of its network namespace (SO_NETNS_COOKIE); 0: unknown
	char job[64];   // ends with a zero byte
	uint8_t reserved1[24];
};

struct entrain_flow_progress {
	uint64_t sequence; // odd while the entry is being written
	uint8_t source[4]; // IPv4; the flow's key is what its sender sees, at both ends
	uint8_t destination[4];
	uint16_t source_port; // in host byte order
	uint16_t destination_port;
	uint8_t protocol;  // IPPROTO_TCP or IPPROTO_UDP
	uint8_t direction; // enum entrain_direction: what this process does with it
	uint8_t role;      // enum entrain_role
	uint8_t reserved0;
	uint32_t group; // flows of one process and group depend on each other: a parameter server, a place in a ring
	uint32_t phase; // enum entrain_phase
	uint64_t iteration;
	uint64_t total;   // bytes of this iteration; as much as is ready, while it is not known
	uint64_t ready;   // of them, may be sent by now
	uint64_t done;    // of them, handed to the kernel (or received)
	uint64_t carried; // bytes done in all iterations, this one included
	// Of a ring: by how much the sender may be ahead of what it has received. Of a worker's flow to its parameter
	// server: how much the server sums up before it sends that back (0: unknown).
	uint64_t chunk;
	uint64_t updated_ns; // CLOCK_MONOTONIC
	uint8_t reserved1[40];
};

// Behind the entries: when the agent wants iterations to start, and when they did (docs/cassini.md).
struct entrain_pace {
	uint64_t sequence;  // odd while the agent writes
	uint64_t anchor_ns; // iterations start then, plus whole periods (CLOCK_MONOTONIC)
	uint64_t period_ns; // 0: when they like
	uint64_t bound_ns;  // drift beyond this is corrected
	uint64_t until_ns;  // after this the pace is not followed; the agent puts it off
	uint8_t reserved[24];
};

struct entrain_starts {
	uint64_t sequence;   // odd while the process writes
	uint64_t starts;     // iterations that have begun
	uint64_t started_ns; // when the last one started, after waiting
	uint64_t lasted_ns;  // from the start of the one before it to when this one could have started
	int64_t drift_ns;    // how much later than its pace says the last one started
	uint64_t waited_ns;  // all waiting so far
	uint64_t shifts;     // how often it waited because the pace was new
	uint64_t corrections;
};

#ifdef __cplusplus
#define ENTRAIN_ASSERT(condition) static_assert(condition, #condition)
#else
#define ENTRAIN_ASSERT(condition) _Static_assert(condition, #condition)
#endif
ENTRAIN_ASSERT(sizeof(struct entrain_progress_header) == 128);
ENTRAIN_ASSERT(offsetof(struct entrain_progress_header, used) == 16);
ENTRAIN_ASSERT(offsetof(struct entrain_progress_header, netns) == 32);
ENTRAIN_ASSERT(offsetof(struct entrain_progress_header, job) == 40);
ENTRAIN_ASSERT(sizeof(struct entrain_flow_progress) == 128);
ENTRAIN_ASSERT(offsetof(struct entrain_flow_progress, source_port) == 16);
ENTRAIN_ASSERT(offsetof(struct entrain_flow_progress, group) == 24);
ENTRAIN_ASSERT(offsetof(struct entrain_flow_progress, iteration) == 32);
ENTRAIN_ASSERT(offsetof(struct entrain_flow_progress, updated_ns) == 80);
ENTRAIN_ASSERT(sizeof(struct entrain_pace) == 64);
ENTRAIN_ASSERT(sizeof(struct entrain_starts) == 64);

// What a process remembers of its last start; schedulers/cassini/pace.py has the same in Python.
struct entrain_memory {
	int64_t anchor, period, bound; // of the pace at the last start; period 0: there was none
	int64_t due;                   // the point of the grid at which the last iteration was due
	int off;                       // starts in a row that were late by more than the bound
	int rested;                    // starts since the last correction
};

enum entrain_start_kind {
	ENTRAIN_AT_ONCE = 0,
	ENTRAIN_KEPT = 1,
	ENTRAIN_SHIFTED = 2,
	ENTRAIN_CORRECTED = 3,
	ENTRAIN_LATE = 4
};
#define ENTRAIN_PATIENCE 5
#define ENTRAIN_REST 20

struct entrain_publisher {
	struct entrain_progress_header *header; // NULL: not open
	struct entrain_flow_progress *entries;  // behind the header
	struct entrain_pace *pace;              // behind the entries
	struct entrain_starts *starts;
	struct entrain_memory memory;
	int file; // keeps the file locked
	char path[PATH_MAX];
};

// Between begin and end any field may be written, `sequence` excepted; readers wait, so be quick.
static inline void entrain_progress_begin(struct entrain_flow_progress *entry)
{
	__atomic_store_n(&entry->sequence, entry->sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); // the sequence is odd before anything changes
}

static inline void entrain_progress_end(struct entrain_flow_progress *entry)
{
	__atomic_store_n(&entry->sequence, entry->sequence + 1, __ATOMIC_RELEASE);
}

static inline uint64_t entrain_progress_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// How far the flow is. `carried` follows from the iterations. A NULL entry is allowed: nobody is told.
static inline void entrain_progress_update(struct entrain_flow_progress *entry, uint64_t iteration,
					   enum entrain_phase phase, uint64_t total, uint64_t ready, uint64_t done)
{
	if (!entry)
		return;
	entrain_progress_begin(entry);
	entry->carried += iteration == entry->iteration ? done - entry->done : done;
	entry->iteration = iteration;
	entry->phase = phase;
	entry->total = total;
	entry->ready = ready;
	entry->done = done;
	entry->updated_ns = entrain_progress_now_ns();
	entrain_progress_end(entry);
}

static inline size_t entrain_progress_size_(uint32_t capacity)
{
	return sizeof(struct entrain_progress_header) + capacity * sizeof(struct entrain_flow_progress) +
	       sizeof(struct entrain_pace) + sizeof(struct entrain_starts);
}

static inline uint64_t entrain_progress_netns_(void)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);
	int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (probe >= 0) {
		if (getsockopt(probe, SOL_SOCKET, 71 /* SO_NETNS_COOKIE */, &cookie, &length))
			cookie = 0;
		close(probe);
	}
	return cookie;
}

// Make this process's file, with room for `capacity` flows. Returns 0, or -1 with errno.
static inline int entrain_progress_open(struct entrain_publisher *publisher, const char *job, uint32_t capacity)
{
	const char *directory = getenv("ENTRAIN_PROGRESS");
	size_t size = entrain_progress_size_(capacity);
	struct flock lock;
	char draft[PATH_MAX];
	uint64_t random;
	void *memory = MAP_FAILED;
	int file, error;

	publisher->header = NULL;
	if (!capacity || capacity > ENTRAIN_PROGRESS_CAPACITY_MAX || strchr(job, '/') || *job == '.') {
		errno = EINVAL;
		return -1;
	}
	if (!directory || !*directory)
		directory = ENTRAIN_PROGRESS_DIRECTORY;
	// Processes of two containers may have the same number: the name has a random one, too.
	if (getrandom(&random, sizeof(random), 0) != sizeof(random) ||
	    snprintf(publisher->path, PATH_MAX, "%s/%s-%d-%08" PRIx32 ".progress", directory, job, getpid(),
		     (uint32_t)random) >= PATH_MAX ||
	    snprintf(draft, PATH_MAX, "%s/.%s.%016" PRIx64, directory, job, random) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	// Others can write in the directory: never open a file or a link that somebody has put there.
	file = open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file < 0)
		return -1;
	memset(&lock, 0, sizeof(lock)); // all of the file
	lock.l_type = F_WRLCK;
	lock.l_whence = SEEK_SET;
	if (ftruncate(file, (off_t)size) || fcntl(file, F_SETLK, &lock))
		goto failed;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		goto failed;
	publisher->file = file;
	publisher->header = (struct entrain_progress_header *)memory;
	publisher->entries = (struct entrain_flow_progress *)(publisher->header + 1);
	publisher->pace = (struct entrain_pace *)(publisher->entries + capacity);
	publisher->starts = (struct entrain_starts *)(publisher->pace + 1);
	memset(&publisher->memory, 0, sizeof(publisher->memory));
	publisher->memory.rested = ENTRAIN_REST;
	memcpy(publisher->header->magic, ENTRAIN_PROGRESS_MAGIC, sizeof(publisher->header->magic));
	publisher->header->version = ENTRAIN_PROGRESS_VERSION;
	publisher->header->capacity = capacity;
	publisher->header->pid = (uint32_t)getpid();
	publisher->header->netns = entrain_progress_netns_();
	strncpy(publisher->header->job, job, sizeof(publisher->header->job) - 1);
	if (rename(draft, publisher->path) == 0) // whole and locked from the start
		return 0;
failed:
	error = errno;
	if (memory != MAP_FAILED)
		munmap(memory, size);
	close(file);
	unlink(draft);
	publisher->header = NULL;
	errno = error;
	return -1;
}

// An entry for the flow from `source` to `destination`, as its sender sees it. NULL with errno where there is no room.
static inline struct entrain_flow_progress *
entrain_progress_flow(struct entrain_publisher *publisher, const struct sockaddr_in *source,
		      const struct sockaddr_in *destination, uint8_t protocol, enum entrain_direction direction,
		      enum entrain_role role, uint32_t group, uint64_t chunk)
{
	struct entrain_flow_progress *entry;

	if (!publisher->header || publisher->header->used >= publisher->header->capacity) {
		errno = ENOSPC;
		return NULL;
	}
	entry = &publisher->entries[publisher->header->used];
	memcpy(entry->source, &source->sin_addr, 4);
	memcpy(entry->destination, &destination->sin_addr, 4);
	entry->source_port = ntohs(source->sin_port);
	entry->destination_port = ntohs(destination->sin_port);
	entry->protocol = protocol;
	entry->direction = (uint8_t)direction;
	entry->role = (uint8_t)role;
	entry->group = group;
	entry->chunk = chunk;
	entry->updated_ns = entrain_progress_now_ns();
	__atomic_store_n(&publisher->header->used, publisher->header->used + 1, __ATOMIC_RELEASE);
	return entry;
}

// The same for a connected TCP socket over IPv4. NULL with errno where it is none.
static inline struct entrain_flow_progress *entrain_progress_socket(struct entrain_publisher *publisher, int fd,
								    enum entrain_direction direction,
								    enum entrain_role role, uint32_t group,
								    uint64_t chunk)
{
	struct sockaddr_in here, there;
	socklen_t length = sizeof(here), length_there = sizeof(there);

	if (getsockname(fd, (struct sockaddr *)&here, &length) ||
	    getpeername(fd, (struct sockaddr *)&there, &length_there))
		return NULL;
	if (here.sin_family != AF_INET) {
		errno = EAFNOSUPPORT;
		return NULL;
	}
	if (direction == ENTRAIN_SENT)
		return entrain_progress_flow(publisher, &here, &there, IPPROTO_TCP, direction, role, group, chunk);
	return entrain_progress_flow(publisher, &there, &here, IPPROTO_TCP, direction, role, group, chunk);
}

// The connection of an entry is closed: the entry is no flow's any more (and is not used again).
static inline void entrain_progress_forget(struct entrain_flow_progress *entry)
{
	if (!entry)
		return;
	entrain_progress_begin(entry);
	entry->direction = ENTRAIN_UNUSED;
	entrain_progress_end(entry);
}

// The pace that holds at `now`. Its period is 0 where there is none, or none that can be followed.
static inline struct entrain_pace entrain_progress_pace_(const struct entrain_pace *pace, uint64_t now)
{
	struct entrain_pace found;
	int tries = 1000; // the agent writes within microseconds

	do {
		found.sequence = __atomic_load_n(&pace->sequence, __ATOMIC_ACQUIRE);
		found.anchor_ns = __atomic_load_n(&pace->anchor_ns, __ATOMIC_RELAXED);
		found.period_ns = __atomic_load_n(&pace->period_ns, __ATOMIC_RELAXED);
		found.bound_ns = __atomic_load_n(&pace->bound_ns, __ATOMIC_RELAXED);
		found.until_ns = __atomic_load_n(&pace->until_ns, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while ((found.sequence % 2 || found.sequence != __atomic_load_n(&pace->sequence, __ATOMIC_RELAXED)) &&
		 --tries);
	if (!tries || now > found.until_ns || found.period_ns > INT64_MAX / 4 || found.anchor_ns > INT64_MAX / 4 ||
	    found.bound_ns >= (found.period_ns + 1) / 2)
		found.period_ns = 0;
	return found;
}

static inline int64_t entrain_modulo_(int64_t value, int64_t period) // not negative, unlike %
{
	return (value % period + period) % period;
}

// When the iteration starts that could start `now`: at most a period later. `follow` in schedulers/cassini/pace.py is
// the same in Python.
static inline int64_t entrain_follow(struct entrain_memory *memory, int64_t anchor, int64_t period, int64_t bound,
				     int64_t now, int64_t *drift, enum entrain_start_kind *kind)
{
	int64_t before = memory->period, due, ahead;
	int same = anchor == memory->anchor && period == before && bound == memory->bound;

	memory->anchor = anchor;
	memory->period = period;
	memory->bound = bound;
	*drift = 0;
	*kind = ENTRAIN_AT_ONCE;
	if (!period)
		return now;
	memory->rested++;
	*kind = ENTRAIN_KEPT;
	if (!before) {
		*drift = entrain_modulo_(now - anchor + period / 2, period) - period / 2;
		memory->due = now - *drift;
		if (*drift > bound || -*drift > bound) {
			memory->due = now + entrain_modulo_(anchor - now, period);
			memory->off = 0;
			*kind = ENTRAIN_SHIFTED;
			return memory->due;
		}
	} else {
		due = memory->due + before;
		// A grid that has moved leaves the job its turn, only later.
		memory->due = same ? due : due - bound + entrain_modulo_(anchor - due + bound, period);
		if (memory->due - due > bound)
			*kind = ENTRAIN_SHIFTED;
		ahead = memory->due - now;
		if (ahead > period || -ahead > period)
			memory->due -= ahead / period * period;
		*drift = now - memory->due;
	}
	if (*drift <= bound) {
		memory->off = 0;
		return now > memory->due ? now : memory->due;
	}
	memory->off++;
	if (memory->off < ENTRAIN_PATIENCE || memory->rested <= ENTRAIN_REST) {
		*kind = ENTRAIN_LATE;
		return now;
	}
	memory->off = memory->rested = 0;
	memory->due = now + entrain_modulo_(anchor - now, period);
	*kind = ENTRAIN_CORRECTED;
	return memory->due;
}

// The same for the agent's pace, and tell the agent.
static inline uint64_t entrain_progress_start_at(struct entrain_publisher *publisher, uint64_t now)
{
	struct entrain_starts *starts = publisher->starts;
	enum entrain_start_kind kind;
	struct entrain_pace pace;
	int64_t drift;
	uint64_t at;

	if (!publisher->header)
		return now;
	pace = entrain_progress_pace_(publisher->pace, now);
	at = (uint64_t)entrain_follow(&publisher->memory, (int64_t)pace.anchor_ns, (int64_t)pace.period_ns,
				      (int64_t)pace.bound_ns, (int64_t)now, &drift, &kind);
	__atomic_store_n(&starts->sequence, starts->sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	starts->lasted_ns = starts->starts ? now - starts->started_ns : 0;
	starts->starts++;
	starts->started_ns = at;
	starts->drift_ns = (kind == ENTRAIN_KEPT || kind == ENTRAIN_LATE) && drift > 0 ? drift : 0;
	starts->waited_ns += at - now;
	starts->shifts += kind == ENTRAIN_SHIFTED;
	starts->corrections += kind == ENTRAIN_CORRECTED;
	__atomic_store_n(&starts->sequence, starts->sequence + 1, __ATOMIC_RELEASE);
	return at;
}

// An iteration could begin now: wait for as long as the pace says. For one thread of the process.
static inline void entrain_progress_start(struct entrain_publisher *publisher)
{
	uint64_t now = entrain_progress_now_ns(), at = entrain_progress_start_at(publisher, now);
	struct timespec until;

	until.tv_sec = (time_t)(at / 1000000000u);
	until.tv_nsec = (long)(at % 1000000000u);
	while (at > now && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

// Remove the file. What a process that dies leaves behind, the host's agent removes.
static inline void entrain_progress_close(struct entrain_publisher *publisher)
{
	if (!publisher->header)
		return;
	if (publisher->header->pid == (uint32_t)getpid()) // not in a child
		unlink(publisher->path);
	munmap(publisher->header, entrain_progress_size_(publisher->header->capacity));
	close(publisher->file);
	publisher->header = NULL;
}

#endif
