"""Fluid model of periodic jobs on one bottleneck under MLTCP: each job's share is proportional to its F.

In congestion avoidance, flows with equal round trips share a link in proportion to their additive increase;
the model assumes that this is exact and instantaneous. `simulation.windows` makes neither assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from machine.errors import BadInput
from schedulers.cassini.profile import Profile
from schedulers.mltcp import Gain

STEP = 1e-2
"""The longest step with constant shares, as a fraction of the shortest sending phase. The error of an
iteration time is of the order of its square."""


@dataclass(frozen=True)
class PeriodicJob:
    """A job that repeats `profile` from `start` (s) on.

    A Down phase lasts as long as the profile says. An Up phase sends its bytes at its rate; if the job gets
    less, the phase takes longer. `connections` holds the fraction of the bytes that each connection carries.
    F depends on the bytes of all connections together. Raises BadInput for invalid values.
    """

    profile: Profile
    start: float = 0.0
    connections: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not (self.start >= 0.0 and math.isfinite(self.start)):
            raise BadInput(f"a job starts at {self.start} s: give a finite time of at least 0")
        if not self.profile.bytes > 0.0:
            raise BadInput("a job's profile sends nothing: give it a phase of a rate above 0")
        parts = self.connections
        if not (parts and min(parts) > 0.0 and math.isclose(math.fsum(parts), 1.0)):
            raise BadInput(f"connections carry {parts} of a job's bytes: give parts above 0 that sum to 1")


class Course:
    """A job's position in its profile, which both models use.

    `left` holds the bytes that each connection still has to send in the current Up phase. While all are 0,
    the job computes until `ready` (s). `times` are the durations of the completed iterations, s.
    """

    def __init__(self, job: PeriodicJob) -> None:
        self.job = job
        self.left = [0.0] * len(job.connections)
        self.rate = 0.0
        self.sent = 0.0
        self.total = job.profile.bytes
        self.times: list[float] = []
        self.ready = self._began = job.start
        self._phase = 0

    @property
    def sending(self) -> bool:
        """Whether the job is in an Up phase; `rate` is then its demand."""
        return self.rate > 0.0

    def proceed(self, now: float) -> None:
        """Enter the phases that begin at or before `now`; a Down phase sets `ready` to its end."""
        phases = self.job.profile.phases
        while not self.sending and self.ready <= now:
            if self._phase == len(phases):
                self.times.append(self.ready - self._began)
                self._began, self._phase, self.sent = self.ready, 0, 0.0
            phase = phases[self._phase]
            self._phase += 1
            if phase.rate > 0.0 and phase.seconds > 0.0:
                self.rate = phase.rate
                self.left = [phase.rate * phase.seconds * part for part in self.job.connections]
            else:
                self.ready += phase.seconds

    def deliver(self, amounts: Iterable[float], now: float, *, least: float = 0.0) -> None:
        """Subtract each connection's amount from the bytes that it has left; up to `least` bytes count as 0.
        The phase ends at `now` when no connection has bytes left."""
        for i, amount in enumerate(amounts):
            self.sent += amount
            self.left[i] -= amount
            if self.left[i] <= least:
                self.left[i] = 0.0
        if not any(self.left):
            self.rate, self.ready = 0.0, now


def shares(weights: Sequence[float], demands: Sequence[float], capacity: float) -> list[float]:
    """Split `capacity` in proportion to `weights`, with no share above its demand: weighted max-min fairness
    on one link. A weight of 0 gets nothing."""
    result = [0.0] * len(weights)
    growing = [i for i, weight in enumerate(weights) if weight > 0.0]
    while growing:
        level = capacity / sum(weights[i] for i in growing)
        capped = [i for i in growing if demands[i] <= level * weights[i]]
        if not capped:
            for i in growing:
                result[i] = level * weights[i]
            break
        for i in capped:
            result[i] = demands[i]
            capacity = max(capacity - demands[i], 0.0)
        growing = [i for i in growing if i not in capped]
    return result


def fluid(
    jobs: Sequence[PeriodicJob], capacity: float, iterations: int, gain: Gain
) -> tuple[tuple[float, ...], ...]:
    """Return each job's iteration times (s) until all have finished `iterations`, on a link of `capacity`
    bytes/s.

    Every connection with bytes left has its job's F as weight; with `schedulers.mltcp.FAIR` this is fair
    sharing. Shares are integrated by the midpoint rule between events. Raises BadInput without jobs, capacity
    or iterations.
    """
    courses = begin(jobs, capacity, iterations)
    shortest = min(p.seconds for job in jobs for p in job.profile.phases if p.rate > 0.0 and p.seconds > 0.0)
    least = 1e-9 * min(course.total * min(course.job.connections) for course in courses)
    now = 0.0
    while True:
        for course in courses:
            course.proceed(now)
        if min(len(course.times) for course in courses) >= iterations:
            return tuple(tuple(course.times) for course in courses)
        until = min((course.ready - now for course in courses if not course.sending), default=math.inf)
        sending = [course for course in courses if course.sending]
        if not sending:
            now += until
            continue
        hold = min(STEP * shortest, until)
        speeds = _speeds(sending, [course.sent for course in sending], capacity, gain)
        half = _lasts(sending, speeds, hold) / 2.0
        middle = [
            course.sent + half * speed * _active(course)
            for course, speed in zip(sending, speeds, strict=True)
        ]
        speeds = _speeds(sending, middle, capacity, gain)
        elapsed = _lasts(sending, speeds, hold)
        now += elapsed
        for course, speed in zip(sending, speeds, strict=True):
            course.deliver([speed * elapsed if left else 0.0 for left in course.left], now, least=least)


def _active(course: Course) -> int:
    return sum(left > 0.0 for left in course.left)


def _speeds(sending: list[Course], sent: list[float], capacity: float, gain: Gain) -> list[float]:
    """Return the rate of each job's active connections when the jobs have sent `sent` bytes."""
    active = [_active(course) for course in sending]
    weights = [
        n * gain.of(min(1.0, s / course.total)) for course, n, s in zip(sending, active, sent, strict=True)
    ]
    split = shares(weights, [course.rate for course in sending], capacity)
    return [share / n for share, n in zip(split, active, strict=True)]


def _lasts(sending: list[Course], speeds: list[float], limit: float) -> float:
    """Return how long `speeds` hold before a connection is done (s), at most `limit`."""
    done = (
        left / speed
        for course, speed in zip(sending, speeds, strict=True)
        for left in course.left
        if left and speed
    )
    return min(limit, *done)


def begin(jobs: Sequence[PeriodicJob], capacity: float, iterations: int) -> list[Course]:
    """Return the jobs at their start; raise BadInput for input that no model can run."""
    if not jobs:
        raise BadInput("no jobs: give at least one")
    if not (capacity > 0.0 and math.isfinite(capacity)):
        raise BadInput(f"the link's capacity is {capacity} bytes/s: give a finite one above 0")
    if iterations < 1:
        raise BadInput(f"{iterations} iterations: give at least 1")
    return [Course(job) for job in jobs]


def best_period(jobs: Sequence[PeriodicJob], capacity: float) -> float:
    """Return a lower bound (s) on the period in which every job completes one iteration. No job is faster
    than alone, and the link has to carry the bytes of all."""
    alone = [
        sum(
            max(p.seconds, p.seconds * p.rate / capacity) if p.rate > 0.0 else p.seconds
            for p in job.profile.phases
        )
        for job in jobs
    ]
    return max(*alone, sum(job.profile.bytes for job in jobs) / capacity)


@dataclass(frozen=True)
class Summary:
    """Iteration times of one job (s), and the ratio of their mean to the ideal."""

    mean: float
    p99: float
    maximum: float
    ratio: float


def summary(times: Sequence[float], ideal: float) -> Summary:
    """Summarize iteration `times` (s) against the `ideal` one."""
    values = np.asarray(times)
    mean = float(values.mean())
    return Summary(mean, float(np.percentile(values, 99)), float(values.max()), mean / ideal)
