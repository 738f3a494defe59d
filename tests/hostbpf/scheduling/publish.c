// Uses progress.h as a library's plugin would: `publish` flows, `fork` then, `hammer` an entry, `dump` a file of somebody's, or `pace` iterations.
#include <inttypes.h>
#include <signal.h>

#include "progress.h"

static struct sockaddr_in address(const char *text, uint16_t port)
{
	struct sockaddr_in result;

	memset(&result, 0, sizeof(result));
	result.sin_family = AF_INET;
	result.sin_port = htons(port);
	inet_aton(text, &result.sin_addr);
	return result;
}

static int dump(const char *path)
{
	struct entrain_progress_header header;
	struct entrain_flow_progress entry;
	FILE *file = fopen(path, "rb");

	if (!file || fread(&header, sizeof(header), 1, file) != 1)
		return 1;
	printf("%.8s %u %u %u %u %" PRIu64 " %s\n", header.magic, header.version, header.capacity, header.used,
	       header.pid, header.netns, header.job);
	for (uint32_t i = 0; i < header.used && fread(&entry, sizeof(entry), 1, file) == 1; i++)
		printf("%" PRIu64 " %u.%u.%u.%u %u.%u.%u.%u %u %u %u %u %u %u %u %" PRIu64 " %" PRIu64 " %" PRIu64
		       " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		       entry.sequence, entry.source[0], entry.source[1], entry.source[2], entry.source[3],
		       entry.destination[0], entry.destination[1], entry.destination[2], entry.destination[3],
		       entry.source_port, entry.destination_port, entry.protocol, entry.direction, entry.role,
		       entry.group, entry.phase, entry.iteration, entry.total, entry.ready, entry.done, entry.carried,
		       entry.chunk, entry.updated_ns);
	fclose(file);
	return 0;
}

// Each line of the input is a pace, and when an iteration could start.
static int pace(struct entrain_publisher *publisher)
{
	struct entrain_starts *told = publisher->starts;
	struct entrain_pace *set = publisher->pace;
	uint64_t now;

	while (scanf("%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &set->anchor_ns, &set->period_ns,
		     &set->bound_ns, &set->until_ns, &now) == 5) {
		entrain_progress_start_at(publisher, now);
		printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRIu64
		       "\n",
		       told->sequence, told->starts, told->started_ns, told->lasted_ns, told->drift_ns, told->waited_ns,
		       told->shifts, told->corrections);
	}
	entrain_progress_close(publisher);
	return 0;
}

int main(int argc, char **argv)
{
	struct entrain_publisher publisher;
	struct entrain_flow_progress *entry;
	struct sockaddr_in source = address("10.0.0.1", 20000), destination = address("10.0.0.2", 7000);

	if (argc == 3 && !strcmp(argv[1], "dump"))
		return dump(argv[2]);
	if (entrain_progress_open(&publisher, "from-c", 4)) {
		perror("entrain_progress_open");
		return 1;
	}
	if (argc == 2 && !strcmp(argv[1], "pace"))
		return pace(&publisher);
	if (argc == 2 && !strcmp(argv[1], "start"))
		entrain_progress_start(&publisher);
	entry = entrain_progress_flow(&publisher, &source, &destination, IPPROTO_TCP, ENTRAIN_SENT, ENTRAIN_RING, 5,
				      77);
	if (argc == 2 && !strcmp(argv[1], "hammer")) {
		for (uint64_t i = 1;; i++) {
			uint64_t until = entrain_progress_now_ns() + 5000; // more often than any library sends

			while (entrain_progress_now_ns() < until)
				;
			entrain_progress_update(entry, i, ENTRAIN_COMMUNICATING, 3 * i, 2 * i, i);
			if (i == 1) {
				puts("ready");
				fflush(stdout);
			}
		}
	}
	entrain_progress_update(entry, 0, ENTRAIN_COMMUNICATING, 1000, 1000, 400);
	entrain_progress_update(entry, 0, ENTRAIN_COMMUNICATING, 1000, 1000, 1000);
	entrain_progress_update(entry, 1, ENTRAIN_COMMUNICATING, 900, 600, 300);
	entrain_progress_flow(&publisher, &destination, &source, IPPROTO_UDP, ENTRAIN_RECEIVED, ENTRAIN_FREE, 0, 0);
	if (argc == 2 && !strcmp(argv[1], "fork")) {
		if (fork())
			pause();
		printf("%d\n", getpid());
		fflush(stdout);
		pause();
	}
	puts("ready");
	fflush(stdout);
	getchar(); // until the test has read it
	entrain_progress_close(&publisher);
	return 0;
}
