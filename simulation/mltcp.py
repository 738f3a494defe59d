"""Periodic jobs on one bottleneck under MLTCP, as a fluid: each job's share is proportional to its F.

In congestion avoidance, flows with equal round trips share a link in proportion to their additive increase;
the fluid takes that as exact and instantaneous. `simulation.windows` does without both assumptions.
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
"""How long shares are held at most, as a part of the shortest phase of sending. The error of an iteration's
time is of the order of its square."""


@dataclass(frozen=True)
class PeriodicJob:
    """A job that goes through `profile` again and again from `start` s on.

    A Down phase takes its time. An Up phase sends its bytes at its rate or at what the job gets, and so takes
    longer when that is less. `connections` are the parts of the bytes that each of the job's connections
    carries; F follows the bytes of all of them together. Raises BadInput for what makes no sense.
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
    """Where one job is in its profile; what the models share.

    `left` holds the bytes that each connection has to send in the present Up phase; while all are 0 the job
    computes until `ready` s. `times` are those of the iterations done, s.
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
        """Whether it is in an Up phase; `rate` is then what it asks for."""
        return self.rate > 0.0

    def proceed(self, now: float) -> None:
        """Enter the phases that begin at or before `now`; in a Down phase, `ready` is when it ends."""
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
        """Take each connection's amount off what it has left, where up to `least` bytes count as nothing.
        With the last of them the phase ends, at `now`."""
        for i, amount in enumerate(amounts):
            self.sent += amount
            self.left[i] -= amount
            if self.left[i] <= least:
                self.left[i] = 0.0
        if not any(self.left):
            self.rate, self.ready = 0.0, now


def shares(weights: Sequence[float], demands: Sequence[float], capacity: float) -> list[float]:
    """Split `capacity` in proportion to `weights`, none above its demand, and what that leaves among the
    others: weighted max-min fairness on one link. Who weighs 0 gets nothing."""
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

    Every connection that has bytes left weighs F of its job; `schedulers.mltcp.FAIR` makes that fair
    sharing. Shares are integrated by the midpoint rule between events. Raises BadInput without jobs,
    capacity or iterations.
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
    """Return what each active connection of each job gets when the jobs are at `sent` bytes."""
    active = [_active(course) for course in sending]
    weights = [
        n * gain.of(min(1.0, s / course.total)) for course, n, s in zip(sending, active, sent, strict=True)
    ]
    split = shares(weights, [course.rate for course in sending], capacity)
    return [share / n for share, n in zip(split, active, strict=True)]


def _lasts(sending: list[Course], speeds: list[float], limit: float) -> float:
    """Return for how long `speeds` hold before a connection is done, at most `limit`."""
    done = (
        left / speed
        for course, speed in zip(sending, speeds, strict=True)
        for left in course.left
        if left and speed
    )
    return min(limit, *done)


def begin(jobs: Sequence[PeriodicJob], capacity: float, iterations: int) -> list[Course]:
    """Return the jobs at their beginnings; raise BadInput for what no model can run."""
    if not jobs:
        raise BadInput("no jobs: give at least one")
    if not (capacity > 0.0 and math.isfinite(capacity)):
        raise BadInput(f"the link's capacity is {capacity} bytes/s: give a finite one above 0")
    if iterations < 1:
        raise BadInput(f"{iterations} iterations: give at least 1")
    return [Course(job) for job in jobs]


def best_period(jobs: Sequence[PeriodicJob], capacity: float) -> float:
    """Return a lower bound (s) of the period at which all jobs can go on together, each once in it: none
    goes faster than alone, and the link carries all of their bytes."""
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
    """Iteration times of one job, s, and their mean's ratio to the ideal."""

    mean: float
    p99: float
    maximum: float
    ratio: float


def summary(times: Sequence[float], ideal: float) -> Summary:
    """Return what is reported of iteration `times` beside the `ideal` one."""
    values = np.asarray(times)
    mean = float(values.mean())
    return Summary(mean, float(np.percentile(values, 99)), float(values.max()), mean / ideal)
