// MLTCP: the window's additive growth is multiplied by F(bytes_ratio), where bytes_ratio is the share of this
// iteration's bytes that the job has already sent from this host. Flows that are further along are favoured, and
// so jobs that share a link slide apart until their communication phases no longer overlap.
//
// A flow belongs to the job whose number is its socket mark. Bytes are counted per job and network namespace, over
// all of its flows that use an MLTCP control. An iteration begins after a gap between acknowledgements that is
// longer than the job's threshold. A job without parameters is not touched: F is 1.
#pragma once

#include "tcp_ca.h"
#include "mltcp_gain.h"

#define MLTCP_LEARN_ITERATIONS 4
#define MLTCP_LEARN_GAP_NS 5000000ULL // shorter gaps are never learned as the computing phase
#define MLTCP_LEARN_BYTES 16384       // what ends with fewer is no iteration: connections are being made
#define MLTCP_LEARN_GAPS 8            // after an iteration of more longest gaps than this, that gap is doubted

enum { MLTCP_SCALE_DECREASE = 1 };

// Set by user space, at any time.
struct mltcp_params {
	u32 slope; // in 1/1024
	u32 intercept;
	u64 total_bytes; // per iteration, of all the job's flows in one namespace; 0: learn it
	u64 gap_ns;      // 0: learn it
	u32 flags;
	u32 reserved;
};

struct mltcp_job_key {
	u32 job;
	u32 reserved;
	u64 netns; // cookie
};

// What the kernel side finds out about a job; user space reads it.
struct mltcp_job {
	u64 last_ack_ns;
	u64 iteration_ns; // when this iteration began
	u64 bytes;        // acknowledged in this iteration
	u64 last_bytes;   // and in the one before
	u64 total_bytes;  // in force; 0: still learning
	u64 gap_ns;       // in force
	u64 longest_gap_ns;
	u64 shortest_gap_ns; // of those that count as a boundary while learning
	u32 iteration;
	u32 samples; // iterations learned from so far
	u32 misfits; // successive iterations whose bytes are not what was learned
	u32 relearned;
	u64 learned[MLTCP_LEARN_ITERATIONS];
};

// At the end of the congestion control's private area, behind what the variant keeps there.
struct mltcp_flow {
	u64 bytes_seen;
	u64 credit;
	struct mltcp_gain gain;
	u32 flags;
	s32 variant; // four bytes more for the variant
};

#define MLTCP_VARIANT_SIZE (104 - sizeof(struct mltcp_flow))
_Static_assert(NOTED_OFFSET + sizeof(u32) <= MLTCP_VARIANT_SIZE, "what a control notes has its own place");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct mltcp_params);
} mltcp_params SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH); // a job that is gone makes room
	__uint(max_entries, 4096);
	__type(key, struct mltcp_job_key);
	__type(value, struct mltcp_job);
} mltcp_jobs SEC(".maps");

static __always_inline struct mltcp_flow *mltcp_flow_of(const struct sock *sk)
{
	return inet_csk_ca(sk) + MLTCP_VARIANT_SIZE;
}

static __always_inline void mltcp_init(struct sock *sk)
{
	struct mltcp_flow *flow = mltcp_flow_of(sk);

	flow->bytes_seen = tcp_sk(sk)->bytes_acked;
	flow->credit = 0;
	flow->gain.denominator = 0;
}

static __always_inline struct mltcp_job *mltcp_job_of(const struct sock *sk, u32 number)
{
	struct mltcp_job_key key = {.job = number, .netns = sk->__sk_common.skc_net.net->net_cookie};
	struct mltcp_job *job = bpf_map_lookup_elem(&mltcp_jobs, &key);
	struct mltcp_job fresh = {};

	if (job)
		return job;
	bpf_map_update_elem(&mltcp_jobs, &key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&mltcp_jobs, &key);
}

static __always_inline u64 mltcp_median(const u64 *values)
{
	u64 a = values[0], b = values[1], c = values[2], d = values[3];
	u64 low = a < b ? a : b, high = a < b ? b : a;
	u64 low2 = c < d ? c : d, high2 = c < d ? d : c;

	// Of four, the mean of the middle two: the larger of the lows and the smaller of the highs.
	return ((low > low2 ? low : low2) + (high < high2 ? high : high2)) / 2;
}

// The gap from which on an acknowledgement opens a new iteration; `last` is when the one before came.
static __always_inline u64 mltcp_threshold(const struct mltcp_params *params, const struct mltcp_job *job, u64 last)
{
	u64 half = job->longest_gap_ns / 2;

	if (params->gap_ns)
		return params->gap_ns;
	if (job->gap_ns)
		return job->gap_ns;
	// The longest gap may have been no computing phase but, say, the time before training: do not wait for
	// another one for ever.
	if (last > job->iteration_ns + MLTCP_LEARN_GAPS * job->longest_gap_ns)
		return MLTCP_LEARN_GAP_NS;
	return half > MLTCP_LEARN_GAP_NS ? half : MLTCP_LEARN_GAP_NS;
}

static __always_inline void mltcp_learn_anew(struct mltcp_job *job)
{
	job->total_bytes = 0;
	job->gap_ns = 0;
	job->longest_gap_ns = 0;
	job->samples = 0;
	job->misfits = 0;
	job->relearned++;
}

// An iteration ended after which nothing was acknowledged for `gap`. Learns from it what is to be learned.
static __always_inline void mltcp_learn(const struct mltcp_params *params, struct mltcp_job *job, u64 gap)
{
	u64 bytes = job->bytes;

	if (job->total_bytes) { // learned already: does it still fit?
		u64 off = bytes > job->total_bytes ? bytes - job->total_bytes : job->total_bytes - bytes;

		job->misfits = off > job->total_bytes / 8 ? job->misfits + 1 : 0;
		if (job->misfits < MLTCP_LEARN_ITERATIONS)
			return;
		mltcp_learn_anew(job);
	}
	if (bytes < MLTCP_LEARN_BYTES)
		return;
	// What looked like boundaries before were pauses within an iteration, or the longest gap was none.
	if (gap > 2 * job->longest_gap_ns || (!params->gap_ns && gap < job->longest_gap_ns / 2)) {
		job->samples = 0;
		job->longest_gap_ns = gap;
		job->shortest_gap_ns = gap;
		return;
	}
	if (gap > job->longest_gap_ns)
		job->longest_gap_ns = gap;
	if (gap < job->shortest_gap_ns)
		job->shortest_gap_ns = gap;
	if (job->samples < MLTCP_LEARN_ITERATIONS)
		job->learned[job->samples & (MLTCP_LEARN_ITERATIONS - 1)] = bytes;
	if (++job->samples < MLTCP_LEARN_ITERATIONS)
		return;
	job->total_bytes = mltcp_median(job->learned);
	job->gap_ns = job->shortest_gap_ns / 4 * 3;
}

// The job's bytes so far were acknowledged until `last`; more are `now`.
static __always_inline void mltcp_advance(const struct mltcp_params *params, struct mltcp_job *job, u64 last, u64 now)
{
	if (!last) {
		job->iteration_ns = now;
	} else if (now - last > mltcp_threshold(params, job, last)) {
		if (!params->total_bytes || !params->gap_ns)
			mltcp_learn(params, job, now - last);
		job->last_bytes = job->bytes;
		job->bytes = 0;
		job->iteration_ns = now;
		job->iteration++;
	} else if (job->total_bytes && job->bytes > MLTCP_LEARN_ITERATIONS * job->total_bytes) {
		// The bytes of that many iterations without a boundary: the pauses have become shorter than the
		// threshold, and F would stay at its maximum.
		mltcp_learn_anew(job);
	}
}

// To be called on every acknowledgement of new data, before the window grows.
static __always_inline void mltcp_acked(struct sock *sk)
{
	struct mltcp_flow *flow = mltcp_flow_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u64 now = bpf_ktime_get_ns(), bytes = tp->bytes_acked - flow->bytes_seen, last, total;
	u32 number = sk->sk_mark;
	struct mltcp_params *params = bpf_map_lookup_elem(&mltcp_params, &number);
	struct mltcp_job *job;

	flow->bytes_seen = tp->bytes_acked;
	flow->gain.denominator = 0;
	if (!params)
		return;
	job = mltcp_job_of(sk, number);
	if (!job)
		return;
	last = job->last_ack_ns;
	// Flows of one job may be acknowledged on two processors at once: one of them opens the iteration.
	if (now > last && __sync_val_compare_and_swap(&job->last_ack_ns, last, now) == last)
		mltcp_advance(params, job, last, now);
	__sync_fetch_and_add(&job->bytes, bytes);
	flow->flags = params->flags;
	total = params->total_bytes ? params->total_bytes : job->total_bytes;
	flow->gain = mltcp_gain_of(params->slope, params->intercept, job->bytes, total);
}

static __always_inline u32 mltcp_growth(struct sock *sk, u32 acked)
{
	struct mltcp_flow *flow = mltcp_flow_of(sk);

	return mltcp_scale(&flow->gain, &flow->credit, acked);
}

// Reno's growth (tcp_reno_cong_avoid), with the additive part multiplied by F. DCTCP grows like this, too.
static __always_inline void mltcp_reno_cong_avoid(struct sock *sk, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!tcp_is_cwnd_limited(sk))
		return;
	if (tcp_in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	tcp_cong_avoid_ai(tp, tp->snd_cwnd, mltcp_growth(sk, acked));
}

// What remains of a window of `cwnd` segments after a decrease by `decrease`, divided by F where the job asks for it.
static __always_inline u32 mltcp_decrease(const struct sock *sk, u32 cwnd, u32 decrease)
{
	struct mltcp_flow *flow = mltcp_flow_of(sk);

	return mltcp_decreased(&flow->gain, flow->flags & MLTCP_SCALE_DECREASE, cwnd, decrease);
}
