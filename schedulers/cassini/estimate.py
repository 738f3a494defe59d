"""A job's profile from what was measured of it: byte counters over a few iterations, and its progress
(Cassini, 4.5.1, "Profiling DNN models").

The job should have its links to itself meanwhile: what others take away looks like longer Up phases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from schedulers.cassini.profile import Phase, Profile
from schedulers.compiled import Floats, Ints

LEAST = 4
"""Whole iterations that an estimate needs."""
SPREAD = 0.1
"""A job whose periods spread by more than this fraction is not periodic."""
DRIFT = 0.05
"""A period that changes by more than this fraction from the first iteration to the last drifts."""
SURE = 3.0
"""How many standard errors a drift must have, so that noise is not called one."""
BINS = 72
"""Parts of an iteration for which the bandwidth is found; fewer if there are fewer samples."""
SAME = 0.2
"""Bandwidths that differ by less than this fraction of the peak belong to one phase."""
IDLE = 0.1
"""A demand below this fraction of the peak is a Down phase."""
CORRELATED = 0.5
"""Least autocorrelation of the bandwidth at a lag of one period."""

Verdict = Literal["periodic", "drifts", "not periodic", "too short"]


@dataclass(frozen=True)
class Estimate:
    """What a job's measurements say. `profile` is None unless the verdict is "periodic".

    `begins` holds when whole iterations began and the last one ended (iterations + 1,), s. `period` is their
    median, s; the other figures are NaN while there are too few iterations. `period_spread` is its standard
    deviation without the drift, and `drift` its change from the first iteration to the last, both as
    fractions of the period. `phase_spread` is the standard deviation of when an iteration has sent 5, 50 and
    95 % of its bytes, whichever is most (s). `rate_spread` is that of the bandwidth in Up phases, as a
    fraction of the peak. Standard deviations are robust (from the median deviation).
    """

    verdict: Verdict
    profile: Profile | None
    begins: Floats
    period: float = math.nan
    period_spread: float = math.nan
    drift: float = math.nan
    phase_spread: float = math.nan
    rate_spread: float = math.nan


def estimate(times: Floats, counts: Floats, iterations: Ints | None = None) -> Estimate:
    """Return what samples say about a job: `times` (samples,) in s, ascending; `counts` (samples,), the bytes
    sent until then; and `iterations` (samples,), the number of the job's iteration at each sample.

    Without `iterations` an iteration begins where the job sends again after its longest pause, and the period
    is where the bandwidth's autocorrelation is highest. Raises ValueError for series of different lengths,
    times that do not ascend, and counters that fall.
    """
    times, counts = np.asarray(times, dtype=float), np.asarray(counts, dtype=float)
    if not len(times) == len(counts) or (iterations is not None and len(iterations) != len(times)):
        raise ValueError("times, counts and iterations need one value for each sample")
    if (np.diff(times) <= 0.0).any():
        raise ValueError("the samples' times do not ascend")
    if (np.diff(counts) < 0.0).any():
        raise ValueError("a byte counter fell: it was reset, or the samples are of two counters")
    if len(times) < 3:
        return Estimate("too short", None, np.empty(0))
    if iterations is not None:
        steps = np.flatnonzero(np.diff(np.asarray(iterations)) > 0)
        begins: Floats = (times[steps] + times[steps + 1]) / 2.0
    else:
        found = _begins(times, counts)
        if found is None:
            return Estimate("not periodic", None, np.empty(0))
        begins = found
    if len(begins) < LEAST + 1:
        return Estimate("too short", None, begins)
    return _judged(times, counts, begins)


def _judged(times: Floats, counts: Floats, begins: Floats) -> Estimate:
    durations = np.diff(begins)
    number = np.arange(len(durations)) - (len(durations) - 1) / 2.0
    period = float(np.median(durations))
    slope = float((number * durations).sum() / (number**2).sum())
    rest = durations - durations.mean() - slope * number
    drift = slope * (len(durations) - 1) / period
    spread = _deviation(rest) / period
    error = math.sqrt(float((rest**2).sum()) / (len(rest) - 2) / float((number**2).sum()))
    bins = max(2, min(BINS, int(period / float(np.median(np.diff(times))))))
    parts = begins[:-1, None] + durations[:, None] * np.linspace(0.0, 1.0, bins + 1)
    sent = np.interp(parts, times, counts)
    rates = np.diff(sent, axis=1) / (durations[:, None] / bins)
    typical = np.median(rates, axis=0)
    peak = float(typical.max())
    verdict: Verdict = "periodic"
    if abs(drift) > DRIFT and abs(slope) > SURE * error:
        verdict = "drifts"
    elif spread > SPREAD or peak <= 0.0:
        verdict = "not periodic"
    up = typical > IDLE * peak
    deviations = 1.4826 * np.median(np.abs(rates - typical), axis=0)
    return Estimate(
        verdict,
        _profile(typical, period) if verdict == "periodic" else None,
        begins,
        period,
        spread,
        drift,
        _phase_spread(parts, sent, begins),
        float(np.median(deviations[up])) / peak if up.any() else math.nan,
    )


def _deviation(values: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _phase_spread(parts: Floats, sent: Floats, begins: Floats) -> float:
    """Return the largest deviation of when an iteration has sent 5, 50 and 95 % of its bytes, s."""
    reached = [
        [np.interp(done[0] + part * (done[-1] - done[0]), done, at) - begin for part in (0.05, 0.5, 0.95)]
        for at, done, begin in zip(parts, sent, begins, strict=False)
    ]
    return max(_deviation(each) for each in np.array(reached).T)


def _begins(times: Floats, counts: Floats) -> Floats | None:
    """Return when iterations begin as the bandwidth alone tells, or None if it does not repeat."""
    step = float(np.median(np.diff(times)))
    grid = np.arange(times[0], times[-1], step)
    rates = np.diff(np.interp(grid, times, counts)) / step
    period = _period(rates)
    if period is None:
        return None
    peak = float(np.percentile(rates, 95))
    sending = np.concatenate(([True], rates > IDLE * peak))
    rising = np.flatnonzero(sending[1:] & ~sending[:-1])
    falling = np.flatnonzero(~sending[1:] & sending[:-1])
    if not rising.size:
        return None
    pauses = rising - falling[: len(rising)]
    at = int(rising[int(np.argmax(pauses))])
    found = [at]
    for direction in (-1, 1):
        last = at
        while near := [r for r in rising.tolist() if abs(direction * (r - last) - period) < period / 4.0]:
            last = min(near, key=lambda r: abs(direction * (r - last) - period))
            found.append(last)
    begins: Floats = grid[np.array(sorted(found))]
    return begins


def _period(rates: Floats) -> float | None:
    """Return the period of `rates` in samples: the shortest lag that correlates nearly as well as any."""
    centred = rates - rates.mean()
    size = len(centred)
    spectrum = np.abs(np.fft.rfft(centred, 2 * size)) ** 2
    overlap = np.fft.irfft(spectrum)[:size]
    lags = np.arange(size)
    usable = lags <= size // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.where(usable, overlap / (size - lags), -1.0) / (overlap[0] / size)
    below = np.flatnonzero(correlation < 0.0)
    if overlap[0] <= 0.0 or not below.size:
        return None
    beyond = correlation.copy()
    beyond[: below[0]] = -1.0
    highest = float(beyond.max())
    if highest < CORRELATED:
        return None
    first = int(np.flatnonzero(beyond >= 0.9 * highest)[0])
    window = beyond[first : first + max(2, first // 10)]
    return float(first + int(np.argmax(window)))


def _profile(rates: Floats, period: float) -> Profile:
    """Return the phases of an iteration whose equal parts have `rates` (bytes/s); its bytes are kept."""
    peak = float(rates.max())
    width = period / len(rates)
    runs: list[list[float]] = []
    for rate in rates.tolist():
        rate = rate if rate > IDLE * peak else 0.0
        if (
            runs
            and abs(rate - float(np.mean(runs[-1]))) <= SAME * peak
            and (rate > 0.0) == (runs[-1][0] > 0.0)
        ):
            runs[-1].append(rate)
        else:
            runs.append([rate])
    levels = [float(np.mean(run)) for run in runs]
    lengths = [width * len(run) for run in runs]
    # A part in which a phase ends and the next begins has a rate in between: it is divided among the two.
    kept: list[int] = []
    for n, run in enumerate(runs):
        if len(run) == 1 and kept and n + 1 < len(runs) and kept[-1] == n - 1:
            before, after = levels[n - 1], levels[n + 1]
            if min(before, after) < levels[n] < max(before, after):
                part = (levels[n] - after) / (before - after)
                lengths[n - 1] += part * width
                lengths[n + 1] += (1.0 - part) * width
                continue
        kept.append(n)
    factor = float(rates.sum()) * width / sum(lengths[n] * levels[n] for n in kept)
    return Profile(tuple(Phase(lengths[n], levels[n] * factor) for n in kept))
