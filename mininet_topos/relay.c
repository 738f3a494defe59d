// Joins two interfaces by a wire that takes time: `relay LEFT RIGHT DELAY_NS JITTER_NS SEED STATISTICS`.
//
// Every frame that arrives at one interface leaves by the other DELAY_NS later, more or less up to JITTER_NS, in order.
// Offloaded packets pass whole, with what the kernel has left to do on them (PACKET_VNET_HDR). The delay counts from
// when the kernel received the frame, not from when this process had a processor. Says `ready` on standard output.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <malloc.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING // Linux 4.20
#define PACKET_IGNORE_OUTGOING 23
#endif

#define NSEC_PER_SEC 1000000000LL
#define LONGEST (1 << 18)        // of a frame, with the virtio header
#define BUFFER (32 << 20)        // of the kernel, for frames that wait for this process
#define ON_THE_WAY (256LL << 20) // bytes that this process keeps at most in each direction
#define BATCH 32                 // frames from one side before the other one has its turn
#define LATE_NS 10000            // of one bin of the histogram
#define LATE_BINS 1000

struct statistics { // as in relays.py
	uint64_t passed, dropped;
	uint64_t late[LATE_BINS]; // frames by how late they left, in steps of LATE_NS; the last one has all above
};

struct frame {
	struct frame *next;
	int64_t due;
	size_t length;
	char bytes[];
};

struct side {
	int socket;
	struct frame *first, **last; // that will leave by the other side
	int64_t held;                // bytes of them
	int64_t due;                 // of the last one
};

static char buffer[LONGEST];
static struct statistics *statistics;
static int64_t delay, jitter;
static uint64_t drawn;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int64_t now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * NSEC_PER_SEC + time.tv_nsec;
}

static uint64_t draw(void) // xorshift64*, Vigna 2016
{
	drawn ^= drawn >> 12;
	drawn ^= drawn << 25;
	drawn ^= drawn >> 27;
	return drawn * 2685821657736338717ULL;
}

static int opened(const char *interface)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	int one = 1, size = BUFFER, fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);

	if (fd < 0)
		fail("packet socket");
	address.sll_ifindex = if_nametoindex(interface);
	if (!address.sll_ifindex)
		fail(interface);
	if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)))
		fail("PACKET_VNET_HDR");
	if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)))
		fail("PACKET_IGNORE_OUTGOING");
	if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one)))
		fail("SO_TIMESTAMPNS");
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one)); // there is none
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		fail("socket buffer");
	if (bind(fd, (void *)&address, sizeof(address)))
		fail(interface);
	return fd;
}

// How long ago the kernel received a frame. Its stamps are of the wall clock, which may step meanwhile.
static int64_t age(struct msghdr *message)
{
	struct timespec stamp;
	int64_t result = 0;

	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SO_TIMESTAMPNS)
			continue;
		memcpy(&stamp, CMSG_DATA(each), sizeof(stamp));
		result = now(CLOCK_REALTIME) - (stamp.tv_sec * NSEC_PER_SEC + stamp.tv_nsec);
	}
	return result < 0 || result > NSEC_PER_SEC / 2 ? 0 : result;
}

// Returns the side of which a frame leaves next, or NULL.
static struct side *next(struct side *sides)
{
	struct frame *left = sides[0].first, *right = sides[1].first;

	if (!left)
		return right ? &sides[1] : NULL;
	return right && right->due < left->due ? &sides[1] : &sides[0];
}

static bool is_due(struct side *sides)
{
	struct side *first = next(sides);

	return first && first->first->due <= now(CLOCK_MONOTONIC);
}

// Takes in one frame; returns whether there was one.
static bool receive(struct side *side)
{
	char control[CMSG_SPACE(sizeof(struct timespec))];
	struct iovec place = {buffer, sizeof(buffer)};
	struct msghdr message = {
		.msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t length = recvmsg(side->socket, &message, MSG_TRUNC);
	struct frame *frame;

	if (length < 0)
		return false; // none is left, or the interface went down: having been told of that clears it
	if (length > LONGEST || side->held + length > ON_THE_WAY || !(frame = malloc(sizeof(*frame) + length))) {
		statistics->dropped++;
		return true;
	}
	frame->next = NULL;
	frame->due = now(CLOCK_MONOTONIC) - age(&message) + delay;
	if (jitter)
		frame->due += (int64_t)(draw() % (2 * jitter + 1)) - jitter;
	if (frame->due < side->due)
		frame->due = side->due;
	side->due = frame->due;
	frame->length = length;
	memcpy(frame->bytes, buffer, length);
	*side->last = frame;
	side->last = &frame->next;
	side->held += length;
	return true;
}

// Lets out the first frame of what came in at `side`.
static void deliver(struct side *side, int out)
{
	struct frame *frame = side->first;
	int64_t late = (now(CLOCK_MONOTONIC) - frame->due) / LATE_NS;

	if (send(out, frame->bytes, frame->length, 0) < 0)
		statistics->dropped++;
	else
		statistics->passed++;
	statistics->late[late < LATE_BINS ? late : LATE_BINS - 1]++;
	side->first = frame->next;
	if (!side->first)
		side->last = &side->first;
	side->held -= frame->length;
	free(frame);
}

// Waits until a frame arrives or is due.
static void await(struct side *sides)
{
	struct pollfd ready[] = {{sides[0].socket, POLLIN, 0}, {sides[1].socket, POLLIN, 0}};
	struct side *first = next(sides);
	int64_t left = first ? first->first->due - now(CLOCK_MONOTONIC) : 0;
	struct timespec patience = {left / NSEC_PER_SEC, left % NSEC_PER_SEC};

	if (left < 0)
		return;
	if (ppoll(ready, 2, first ? &patience : NULL, NULL) < 0 && errno != EINTR)
		fail("poll");
}

static void map_statistics(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*statistics)))
		fail(path);
	statistics = mmap(NULL, sizeof(*statistics), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (statistics == MAP_FAILED)
		fail(path);
	close(fd);
}

int main(int argc, char **argv)
{
	struct sched_param urgent = {1};
	struct side sides[2] = {};

	if (argc != 7) {
		fprintf(stderr, "usage: relay LEFT RIGHT DELAY_NS JITTER_NS SEED STATISTICS\n");
		return 2;
	}
	delay = atoll(argv[3]);
	jitter = atoll(argv[4]);
	drawn = strtoull(argv[5], NULL, 10) * 2 + 1;
	map_statistics(argv[6]);
	for (int i = 0; i < 2; i++) {
		sides[i].socket = opened(argv[1 + i]);
		sides[i].last = &sides[i].first;
	}
	// Memory that is given back has to be asked for, and faulted in, again.
	mallopt(M_TRIM_THRESHOLD, ON_THE_WAY);
	mallopt(M_MMAP_THRESHOLD, 2 * LONGEST);
	prctl(PR_SET_TIMERSLACK, 1);
	sched_setscheduler(0, SCHED_RR, &urgent); // where that is allowed
	mlockall(MCL_CURRENT);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		bool left = false;

		while (is_due(sides)) {
			struct side *first = next(sides);

			deliver(first, sides[first == &sides[0]].socket);
		}
		// Taking frames in can wait: their time counts from when the kernel had them.
		for (int i = 0; i < 2; i++) {
			int taken = 0;

			while (taken < BATCH && !is_due(sides) && receive(&sides[i]))
				taken++;
			left |= taken == BATCH || is_due(sides);
		}
		if (!left)
			await(sides);
	}
}
