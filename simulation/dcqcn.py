"""Periodic jobs on one bottleneck under DCQCN (Zhu et al., SIGCOMM 2015), each with its own period T of rate
increase and its own gain F of MLTCP.

Two models share the jobs, the queue and its marking, and advance in steps. In the *fluid* one, rates follow
the differential equations of Zhu et al. (CoNEXT 2016), which have no hyper increase. In the *stepwise* one,
each sender is the state machine of a NIC: marks are drawn at random, notifications arrive at most every
50 µs, and timers and the byte counter raise the rate. The feedback delay is one step. The network is
lossless: a full queue holds senders back.

Under MLTCP, additive and hyper increase are F(bytes_ratio) times as large (Cassini and MLTCP thesis, equation
1.2). The ratio is that of the bytes that a job has sent of its iteration, which it knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from machine.errors import BadInput
from schedulers.cassini.profile import Profile
from schedulers.compiled import Floats, Ints, compiled
from schedulers.mltcp import FAIR, Gain

Model = Literal["fluid", "stepwise"]
MODELS: tuple[Model, ...] = ("fluid", "stepwise")

SEGMENT = 1000.0
"""Bytes per segment."""
STEP = 5e-6
"""Length of a step, s."""
TIMER_S = 125e-6
"""T in the thesis (3.2)."""
CNP_S = 50e-6
"""Least time between two notifications of a flow."""
ALPHA_S = 55e-6
"""α decays once in this time without a notification."""
GAIN = 1.0 / 256.0
RAISE = 40e6 / 8.0
"""Additive increase (R_AI), bytes/s."""
HYPER = 10.0 * RAISE
"""Hyper increase (R_HAI), bytes/s."""
ROUNDS = 5
"""Increases of fast recovery (F)."""
COUNTER = 10e6
"""Bytes after which the byte counter raises the rate (B)."""
MARK_FROM, MARK_TO, MARK_MOST = 80e3, 160e3, 0.01
"""The queue (bytes) from which segments are marked, up to which the probability grows, and to what. The
thresholds are the thesis' 1,000 and 2,000 cells of 80 bytes; the probability is DCQCN's."""
BUFFER = 1e6
"""Bytes in the queue that hold senders back."""
BIN = 1e-3
"""Width of the bins of utilisation, s."""


@dataclass(frozen=True)
class Run:
    """`times` (jobs, iterations) holds the duration of each iteration, s; `rates` (jobs, bins) the mean rate
    in bins of a millisecond, bytes/s; `sent` (jobs,) the bytes sent; `marked` (jobs,) how many segments were
    marked."""

    times: Floats
    rates: Floats
    sent: Floats
    marked: Floats


RATE, TARGET, ALPHA, NOTIFIED, DECAYED, UNTIL_TIMER, UNTIL_BYTES, BY_TIMER, BY_BYTES = range(9)
"""Fields of a NIC's state: the rate and its target (bytes/s), α, when the last notification came and when α
last changed (s), what is left until the timer (s) and the byte counter (bytes) raise the rate, and how often
each has done so since the last notification."""


@compiled
def _marking(queue: float) -> float:
    if queue <= MARK_FROM:
        return 0.0
    if queue > MARK_TO:
        return 1.0
    return MARK_MOST * (queue - MARK_FROM) / (MARK_TO - MARK_FROM)


@compiled
def start(sender: Floats, timer: float, capacity: float) -> None:
    """Set a NIC's state, shape (9,), to that of a new sender: at the link's rate, with α = 1."""
    sender[:] = 0.0
    sender[RATE] = sender[TARGET] = capacity
    sender[ALPHA] = 1.0
    sender[NOTIFIED] = -1.0
    sender[UNTIL_TIMER], sender[UNTIL_BYTES] = timer, COUNTER


@compiled
def advance(
    sender: Floats, now: float, notified: bool, size: float, timer: float, factor: float, capacity: float
) -> None:
    """Advance a NIC's state by a step in which it sent `size` bytes and was `notified` of congestion or not
    (Zhu et al. 2015, equations 1 to 4 and figure 7). `factor` is MLTCP's F, 1 without MLTCP."""
    if notified:
        sender[TARGET] = sender[RATE]
        sender[RATE] = max(sender[RATE] * (1.0 - sender[ALPHA] / 2.0), RAISE)
        sender[ALPHA] += GAIN * (1.0 - sender[ALPHA])
        sender[NOTIFIED] = sender[DECAYED] = now
        sender[UNTIL_TIMER], sender[UNTIL_BYTES] = timer, COUNTER
        sender[BY_TIMER] = sender[BY_BYTES] = 0.0
    if now - sender[DECAYED] >= ALPHA_S:
        sender[ALPHA] *= 1.0 - GAIN
        sender[DECAYED] += ALPHA_S
    sender[UNTIL_TIMER] -= STEP
    sender[UNTIL_BYTES] -= size
    if sender[UNTIL_TIMER] <= 0.0:
        sender[UNTIL_TIMER] += timer
        sender[BY_TIMER] += 1.0
        _increase(sender, factor, capacity)
    if sender[UNTIL_BYTES] <= 0.0:
        sender[UNTIL_BYTES] += COUNTER
        sender[BY_BYTES] += 1.0
        _increase(sender, factor, capacity)


@compiled
def _increase(sender: Floats, factor: float, capacity: float) -> None:
    """Do fast recovery, additive increase, or hyper increase, whose steps become longer by R_HAI each time
    that both counters have done another round (as in QCN, IEEE 802.1Qau, from which DCQCN has it)."""
    beyond = min(sender[BY_TIMER], sender[BY_BYTES]) - ROUNDS
    if beyond > 0.0:
        sender[TARGET] += factor * HYPER * beyond
    elif max(sender[BY_TIMER], sender[BY_BYTES]) > ROUNDS:
        sender[TARGET] += factor * RAISE
    sender[TARGET] = min(sender[TARGET], capacity)
    sender[RATE] = (sender[RATE] + sender[TARGET]) / 2.0


@compiled
def _flow(
    rate: float, target: float, alpha: float, p: float, timer: float, sends: bool, factor: float
) -> tuple[float, ...]:
    """Return the derivatives of a flow's rate, target (bytes/s) and α, if its segments are marked with
    probability `p`. `factor` is MLTCP's F."""
    r = rate / SEGMENT
    bytes_ = COUNTER / SEGMENT
    if p <= 1e-12 or not sends:
        ups = (r / bytes_ if sends else 0.0) + 1.0 / timer
        return (target - rate) / 2.0 * ups, factor * RAISE * ups, -GAIN / ALPHA_S * alpha
    p = min(p, 1.0 - 1e-9)
    log = math.log1p(-p)
    cut = -math.expm1(CNP_S * r * log)  # whether a notification comes within CNP_S
    by_bytes = p / math.expm1(min(-bytes_ * log, 700.0))
    by_timer = p / math.expm1(min(-timer * r * log, 700.0))
    later = math.exp(ROUNDS * bytes_ * log) * by_bytes + math.exp(ROUNDS * timer * r * log) * by_timer
    d_rate = -rate * alpha / (2.0 * CNP_S) * cut + (target - rate) / 2.0 * r * (by_bytes + by_timer)
    d_target = -(target - rate) / CNP_S * cut + factor * RAISE * r * later
    d_alpha = GAIN / ALPHA_S * (-math.expm1(ALPHA_S * r * log) - alpha)
    return d_rate, d_target, d_alpha


@compiled
def _run(
    phases: Floats,
    counts: Ints,
    starts: Floats,
    timers: Floats,
    gains: Floats,
    iterations: int,
    capacity: float,
    fluid: bool,
    seed: int,
    times: Floats,
    rates: Floats,
    sent: Floats,
    marked: Floats,
) -> None:
    np.random.seed(seed)
    jobs = len(counts)
    phase = np.zeros(jobs, np.int64)
    left = np.zeros(jobs)
    demand = np.zeros(jobs)
    ready = starts.copy()
    began = starts.copy()
    done = np.zeros(jobs, np.int64)
    total = (phases[:, :, 0] * phases[:, :, 1]).sum(axis=1)
    progress = np.zeros(jobs)  # bytes of the iteration that a job sends, or sent last
    over = np.zeros(jobs, np.bool_)  # whether its next bytes are of another one
    senders = np.empty((jobs, 9))
    for j in range(jobs):
        start(senders[j], timers[j], capacity)
    queue = 0.0
    step_number = 0
    while done.min() < iterations:
        now = step_number * STEP
        step_number += 1
        p = _marking(queue)
        arriving = 0.0
        for j in range(jobs):
            while demand[j] == 0.0 and ready[j] <= now:
                if phase[j] == counts[j]:
                    if done[j] < iterations:
                        times[j, done[j]] = ready[j] - began[j]
                    done[j] += 1
                    began[j] = ready[j]
                    phase[j] = 0
                    over[j] = True
                seconds, wanted = phases[j, phase[j], 0], phases[j, phase[j], 1]
                phase[j] += 1
                if wanted > 0.0:
                    demand[j], left[j] = wanted, wanted * seconds
                    if over[j]:
                        progress[j], over[j] = 0.0, False
                else:
                    ready[j] += seconds
            sends = demand[j] > 0.0
            sender = senders[j]
            size = min(sender[RATE], demand[j]) * STEP if sends else 0.0
            if queue >= BUFFER:
                size *= 0.5
            size = min(size, left[j])
            segments = size / SEGMENT
            sent[j] += size
            marked[j] += p * segments
            arriving += size
            progress[j] += size
            if sends:
                left[j] -= size
                bin_ = int(now / BIN)
                if bin_ < rates.shape[1]:
                    rates[j, bin_] += size / BIN
                if left[j] <= 1e-6:
                    demand[j], left[j] = 0.0, 0.0
                    ready[j] = now + STEP
            factor = gains[j, 0] + gains[j, 1] * min(progress[j] / total[j], 1.0)
            if fluid:
                d_rate, d_target, d_alpha = _flow(
                    sender[RATE], sender[TARGET], sender[ALPHA], p, timers[j], sends, factor
                )
                sender[RATE] = min(max(sender[RATE] + STEP * d_rate, RAISE), capacity)
                sender[TARGET] = min(max(sender[TARGET] + STEP * d_target, RAISE), capacity)
                sender[ALPHA] = min(max(sender[ALPHA] + STEP * d_alpha, 0.0), 1.0)
                continue
            may = now - sender[NOTIFIED] >= CNP_S
            notified = may and np.random.random() < 1.0 - (1.0 - p) ** segments
            advance(sender, now, notified, size, timers[j], factor, capacity)
        queue = max(queue + arriving - capacity * STEP, 0.0)


def run(
    profiles: Sequence[Profile],
    timers: Sequence[float],
    capacity: float,
    iterations: int,
    model: Model,
    *,
    gains: Sequence[Gain] | None = None,
    starts: Sequence[float] | None = None,
    seed: int = 0,
    bins: int = 0,
) -> Run:
    """Run jobs on a link of `capacity` bytes/s until each has finished `iterations`; their periods of rate
    increase are `timers` (s), and their gains under MLTCP `gains` (None: without MLTCP). Jobs begin at
    `starts` (s), by default together. `bins` milliseconds of utilisation are kept.

    Raises BadInput for jobs that send nothing, for timers or gains that are not one each, and for a timer, a
    capacity or a number of iterations that is not above 0.
    """
    if len(timers) != len(profiles) or min(timers, default=0.0) < STEP:
        raise BadInput(f"DCQCN's T is {list(timers)} s: give {len(profiles)} of at least {STEP} s")
    gains = [FAIR] * len(profiles) if gains is None else gains
    if len(gains) != len(profiles):
        raise BadInput(f"{len(gains)} gains for {len(profiles)} jobs: give one each")
    if not all(profile.bytes > 0.0 for profile in profiles):
        raise BadInput("a job's profile sends nothing: give it a phase of a rate above 0")
    if not (capacity > 0.0 and math.isfinite(capacity)) or iterations < 1:
        raise BadInput(f"{capacity} bytes/s and {iterations} iterations: give more than 0 of both")
    counts = np.array([len(profile.phases) for profile in profiles])
    phases = np.zeros((len(profiles), counts.max(), 2))
    for j, profile in enumerate(profiles):
        for n, phase in enumerate(profile.phases):
            phases[j, n] = phase.seconds, phase.rate if phase.seconds > 0.0 else 0.0
    jobs = len(profiles)
    result = Run(np.zeros((jobs, iterations)), np.zeros((jobs, bins)), np.zeros(jobs), np.zeros(jobs))
    begins = np.zeros(jobs) if starts is None else np.array(starts, dtype=float)
    _run(
        phases,
        counts,
        begins,
        np.array(timers, dtype=float),
        np.array([(gain.of(0.0), gain.of(1.0) - gain.of(0.0)) for gain in gains]),
        iterations,
        capacity,
        model == "fluid",
        seed,
        result.times,
        result.rates,
        result.sent,
        result.marked,
    )
    return result
