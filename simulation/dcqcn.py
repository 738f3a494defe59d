"""Periodic jobs on one bottleneck under DCQCN (Zhu et al., SIGCOMM 2015), each with its own period T of rate
increase.

Two models share the jobs, the queue and its marking, and advance in steps. In the *fluid* one, rates follow
the differential equations of Zhu et al. (CoNEXT 2016). In the *stepwise* one, each sender is the state
machine of a NIC: marks are drawn at random, notifications arrive at most every 50 µs, and timers and the byte
counter raise the rate. Neither has hyper increase. The feedback delay is one step. The network is lossless: a
full queue holds senders back.
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

Model = Literal["fluid", "stepwise"]
MODELS: tuple[Model, ...] = ("fluid", "stepwise")

SEGMENT = 1000.0
"""Bytes per segment."""
STEP = 5e-6
"""Length of a step, s."""
CNP_S = 50e-6
"""Least time between two notifications of a flow."""
ALPHA_S = 55e-6
"""α decays once in this time without a notification."""
GAIN = 1.0 / 256.0
RAISE = 40e6 / 8.0
"""Additive increase (R_AI), bytes/s."""
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
    in bins of a millisecond, bytes/s; `marked` (jobs,) how many segments were marked."""

    times: Floats
    rates: Floats
    marked: Floats


@compiled
def _marking(queue: float) -> float:
    if queue <= MARK_FROM:
        return 0.0
    if queue > MARK_TO:
        return 1.0
    return MARK_MOST * (queue - MARK_FROM) / (MARK_TO - MARK_FROM)


@compiled
def _flow(rate: float, target: float, alpha: float, p: float, timer: float, sends: bool) -> tuple[float, ...]:
    """Return the derivatives of a flow's rate, target (bytes/s) and α, if its segments are marked with
    probability `p`."""
    r = rate / SEGMENT
    bytes_ = COUNTER / SEGMENT
    if p <= 1e-12 or not sends:
        ups = (r / bytes_ if sends else 0.0) + 1.0 / timer
        return (target - rate) / 2.0 * ups, RAISE * ups, -GAIN / ALPHA_S * alpha
    p = min(p, 1.0 - 1e-9)
    log = math.log1p(-p)
    cut = -math.expm1(CNP_S * r * log)  # whether a notification comes within CNP_S
    by_bytes = p / math.expm1(min(-bytes_ * log, 700.0))
    by_timer = p / math.expm1(min(-timer * r * log, 700.0))
    later = math.exp(ROUNDS * bytes_ * log) * by_bytes + math.exp(ROUNDS * timer * r * log) * by_timer
    d_rate = -rate * alpha / (2.0 * CNP_S) * cut + (target - rate) / 2.0 * r * (by_bytes + by_timer)
    d_target = -(target - rate) / CNP_S * cut + RAISE * r * later
    d_alpha = GAIN / ALPHA_S * (-math.expm1(ALPHA_S * r * log) - alpha)
    return d_rate, d_target, d_alpha


@compiled
def _run(
    phases: Floats,
    counts: Ints,
    starts: Floats,
    timers: Floats,
    iterations: int,
    capacity: float,
    fluid: bool,
    seed: int,
    times: Floats,
    rates: Floats,
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
    rate = np.full(jobs, capacity)
    target = np.full(jobs, capacity)
    alpha = np.ones(jobs)
    notified = np.full(jobs, -1.0)
    decayed = np.zeros(jobs)
    until_timer = timers.copy()
    until_bytes = np.full(jobs, COUNTER)
    by_timer = np.zeros(jobs, np.int64)
    by_bytes = np.zeros(jobs, np.int64)
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
                seconds, wanted = phases[j, phase[j], 0], phases[j, phase[j], 1]
                phase[j] += 1
                if wanted > 0.0:
                    demand[j], left[j] = wanted, wanted * seconds
                else:
                    ready[j] += seconds
            sends = demand[j] > 0.0
            size = min(rate[j], demand[j]) * STEP if sends else 0.0
            if queue >= BUFFER:
                size *= 0.5
            size = min(size, left[j])
            segments = size / SEGMENT
            marked[j] += p * segments
            arriving += size
            if sends:
                left[j] -= size
                bin_ = int(now / BIN)
                if bin_ < rates.shape[1]:
                    rates[j, bin_] += size / BIN
                if left[j] <= 1e-6:
                    demand[j], left[j] = 0.0, 0.0
                    ready[j] = now + STEP
            if fluid:
                d_rate, d_target, d_alpha = _flow(rate[j], target[j], alpha[j], p, timers[j], sends)
                rate[j] = min(max(rate[j] + STEP * d_rate, RAISE), capacity)
                target[j] = min(max(target[j] + STEP * d_target, RAISE), capacity)
                alpha[j] = min(max(alpha[j] + STEP * d_alpha, 0.0), 1.0)
                continue
            if now - notified[j] >= CNP_S and np.random.random() < 1.0 - (1.0 - p) ** segments:
                target[j] = rate[j]
                rate[j] = max(rate[j] * (1.0 - alpha[j] / 2.0), RAISE)
                alpha[j] += GAIN * (1.0 - alpha[j])
                notified[j] = decayed[j] = now
                until_timer[j], until_bytes[j] = timers[j], COUNTER
                by_timer[j] = by_bytes[j] = 0
            if now - decayed[j] >= ALPHA_S:
                alpha[j] *= 1.0 - GAIN
                decayed[j] += ALPHA_S
            until_timer[j] -= STEP
            until_bytes[j] -= size
            for source in range(2):
                if (until_timer[j] if source == 0 else until_bytes[j]) > 0.0:
                    continue
                if source == 0:
                    until_timer[j] += timers[j]
                    by_timer[j] += 1
                else:
                    until_bytes[j] += COUNTER
                    by_bytes[j] += 1
                if max(by_timer[j], by_bytes[j]) > ROUNDS:
                    target[j] = min(target[j] + RAISE, capacity)
                rate[j] = (rate[j] + target[j]) / 2.0
        queue = max(queue + arriving - capacity * STEP, 0.0)


def run(
    profiles: Sequence[Profile],
    timers: Sequence[float],
    capacity: float,
    iterations: int,
    model: Model,
    *,
    starts: Sequence[float] | None = None,
    seed: int = 0,
    bins: int = 0,
) -> Run:
    """Run jobs on a link of `capacity` bytes/s until each has finished `iterations`; their periods of rate
    increase are `timers` (s). Jobs begin at `starts` (s), by default together. `bins` milliseconds of
    utilisation are kept.

    Raises BadInput for jobs that send nothing, and for a timer, a capacity or a number of iterations that is
    not above 0.
    """
    if len(timers) != len(profiles) or min(timers, default=0.0) < STEP:
        raise BadInput(f"DCQCN's T is {list(timers)} s: give {len(profiles)} of at least {STEP} s")
    if not all(profile.bytes > 0.0 for profile in profiles):
        raise BadInput("a job's profile sends nothing: give it a phase of a rate above 0")
    if not (capacity > 0.0 and math.isfinite(capacity)) or iterations < 1:
        raise BadInput(f"{capacity} bytes/s and {iterations} iterations: give more than 0 of both")
    counts = np.array([len(profile.phases) for profile in profiles])
    phases = np.zeros((len(profiles), counts.max(), 2))
    for j, profile in enumerate(profiles):
        for n, phase in enumerate(profile.phases):
            phases[j, n] = phase.seconds, phase.rate if phase.seconds > 0.0 else 0.0
    result = Run(
        np.zeros((len(profiles), iterations)), np.zeros((len(profiles), bins)), np.zeros(len(profiles))
    )
    begins = np.zeros(len(profiles)) if starts is None else np.array(starts, dtype=float)
    _run(
        phases,
        counts,
        begins,
        np.array(timers, dtype=float),
        iterations,
        capacity,
        model == "fluid",
        seed,
        result.times,
        result.rates,
        result.marked,
    )
    return result
