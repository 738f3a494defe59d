// Joins two interfaces by a wire that takes time: `relay LEFT RIGHT DELAY_NS JITTER_NS SEED STATISTICS`.
//
// Every frame that arrives at one interface leaves by the other DELAY_NS later, more or less up to JITTER_NS, in order.
// Offloaded packets pass whole, with what the kernel has left to do on them (PACKET_VNET_HDR). The delay counts from
// when the kernel received the frame, not from when this process had a processor. Says `ready` on standard output.
//
// Frames wait in the kernel, unread, and wake nobody: the relay sleeps until one is due, or until those in the kernel
// have to be read.
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
#define READ 32                  // frames at a time
#define SENT 8
#define REST_NS 50000      // of a sleep, at least: to wake up for each frame of a fast flow would cost more
#define UNREAD_NS 10000000 // for which frames stay in the kernel at most: its clock may be set
#define LATE_NS 10000      // of one bin of the histogram
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

static char buffers[READ][LONGEST];
static struct side sides[2];
static struct statistics *statistics;
static int64_t delay, jitter;
static uint64_t drawn;
static int64_t emptied; // when there was no frame left to read

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

static bool is_due(const struct side *side)
{
	return side->first && side->first->due <= now(CLOCK_MONOTONIC);
}

static void keep(struct side *side, struct msghdr *message, size_t length)
{
	struct frame *frame;

	if (length > LONGEST || side->held + (int64_t)length > ON_THE_WAY ||
	    !(frame = malloc(sizeof(*frame) + length))) {
		statistics->dropped++;
		return;
	}
	frame->next = NULL;
	frame->due = now(CLOCK_MONOTONIC) - age(message) + delay;
	if (jitter)
		frame->due += (int64_t)(draw() % (2 * jitter + 1)) - jitter;
	if (frame->due < side->due)
		frame->due = side->due;
	side->due = frame->due;
	frame->length = length;
	memcpy(frame->bytes, message->msg_iov->iov_base, length);
	*side->last = frame;
	side->last = &frame->next;
	side->held += length;
}

// Reads up to READ frames; returns whether there may be more.
static bool receive(struct side *side)
{
	char control[READ][CMSG_SPACE(sizeof(struct timespec))];
	struct mmsghdr messages[READ];
	struct iovec places[READ];
	int count;

	for (int i = 0; i < READ; i++) {
		places[i] = (struct iovec){buffers[i], LONGEST};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &places[i],
						      .msg_iovlen = 1,
						      .msg_control = control[i],
						      .msg_controllen = sizeof(control[i])};
	}
	// An error that the interface went down is cleared by being told.
	count = recvmmsg(side->socket, messages, READ, MSG_TRUNC, NULL);
	for (int i = 0; i < count; i++)
		keep(side, &messages[i].msg_hdr, messages[i].msg_len);
	return count == READ;
}

// How many frames the kernel has dropped since it was last asked, because its buffer was full.
static uint64_t lost(const struct side *side)
{
	struct tpacket_stats stats = {};
	socklen_t size = sizeof(stats);

	return getsockopt(side->socket, SOL_PACKET, PACKET_STATISTICS, &stats, &size) ? 0 : stats.tp_drops;
}

// Lets out up to SENT frames that are due of those that came in at `side`.
static void deliver(struct side *side, int out)
{
	struct mmsghdr messages[SENT];
	struct iovec places[SENT];
	struct frame *frame = side->first;
	int64_t time = now(CLOCK_MONOTONIC);
	int count = 0, sent;

	for (; count < SENT && frame && frame->due <= time; frame = frame->next, count++) {
		places[count] = (struct iovec){frame->bytes, frame->length};
		messages[count].msg_hdr = (struct msghdr){.msg_iov = &places[count], .msg_iovlen = 1};
	}
	sent = sendmmsg(out, messages, count, 0);
	if (sent < 0 && errno == ENOBUFS) { // the receiving processor has enough to do; the frames stay due
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, REST_NS}, NULL);
		return;
	}
	if (sent < 0) {
		sent = 1;
		statistics->dropped++;
	} else {
		statistics->passed += sent;
	}
	time = now(CLOCK_MONOTONIC);
	while (sent--) {
		int64_t late = (time - side->first->due) / LATE_NS;

		statistics->late[late < LATE_BINS ? late : LATE_BINS - 1]++;
		frame = side->first;
		side->first = frame->next;
		side->held -= frame->length;
		free(frame);
	}
	if (!side->first)
		side->last = &side->first;
}

// The time by which what arrives after `emptied` has to be read. None of it is due earlier than this.
static int64_t unread_until(void)
{
	int64_t least = (delay - jitter) / 2;

	return emptied + (least < UNREAD_NS ? least : UNREAD_NS);
}

// Sends what is due and reads what has arrived. Returns when there is something to do again; INT64_MAX: when a frame
// arrives.
static int64_t work(void)
{
	int64_t next = INT64_MAX;

	for (bool more = true; more;) {
		int64_t time;

		for (int i = 0; i < 2; i++) {
			if (is_due(&sides[i]))
				deliver(&sides[i], sides[!i].socket);
		}
		more = is_due(&sides[0]) || is_due(&sides[1]);
		time = now(CLOCK_MONOTONIC);
		if (more || ((sides[0].first || sides[1].first) && time < unread_until()))
			continue;
		for (int i = 0; i < 2; i++) {
			more |= receive(&sides[i]);
			statistics->dropped += lost(&sides[i]);
		}
		if (!more)
			emptied = time;
	}
	for (int i = 0; i < 2; i++) {
		if (sides[i].first && sides[i].first->due < next)
			next = sides[i].first->due;
	}
	return next < INT64_MAX && next > unread_until() ? unread_until() : next;
}

// Waits until there is something to do, or, if `until` is INT64_MAX, until a frame arrives.
static void await(int64_t until)
{
	struct pollfd ready[] = {{sides[0].socket, POLLIN, 0}, {sides[1].socket, POLLIN, 0}};
	int64_t rested = now(CLOCK_MONOTONIC) + REST_NS;
	struct timespec at;

	if (until == INT64_MAX) {
		if (poll(ready, 2, -1) < 0 && errno != EINTR)
			fail("poll");
		return;
	}
	if (until < rested)
		until = rested;
	at = (struct timespec){until / NSEC_PER_SEC, until % NSEC_PER_SEC};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
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
	mlockall(MCL_CURRENT);
	prctl(PR_SET_TIMERSLACK, 1);
	sched_setscheduler(0, SCHED_RR, &urgent); // where that is allowed
	printf("ready\n");
	fflush(stdout);
	for (;;)
		await(work());
}
