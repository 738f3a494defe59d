"""Window-level model of periodic jobs on one bottleneck: Reno, CUBIC and DCTCP, with or without MLTCP.

Time advances by round trips, which include queueing and are common to all connections. In each round trip a
connection has its window in flight. What exceeds the queue is lost; losses are drawn at random among
connections, in proportion to their bytes in flight. Windows persist through the pauses between iterations
(Linux with `tcp_slow_start_after_idle=0`). There are no timeouts. A phase that begins within a round trip
waits for the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from machine.errors import BadInput
from schedulers.mltcp import Gain, Progress
from simulation.mltcp import Course, PeriodicJob, begin

SEGMENT = 1500
"""Bytes per segment."""


@dataclass(frozen=True)
class Bottleneck:
    """A link of `rate` bytes/s with a round trip of `rtt` s when empty and a FIFO queue of `buffer` bytes.
    The queue marks (ECN) segments that arrive while it holds more than `mark_above` bytes; None: never.
    Raises BadInput for invalid values."""

    rate: float
    rtt: float
    buffer: float
    mark_above: float | None = None

    def __post_init__(self) -> None:
        if not (self.rtt > 0.0 and self.rate * self.rtt >= SEGMENT and math.isfinite(self.rate * self.rtt)):
            raise BadInput(
                f"{self.rate} bytes/s and a round trip of {self.rtt} s: it must take a segment or more"
            )
        if not self.buffer >= SEGMENT:
            raise BadInput(f"a queue of {self.buffer} bytes: give at least a segment ({SEGMENT})")
        if self.mark_above is not None and not 0.0 <= self.mark_above < self.buffer:
            raise BadInput(f"marking above {self.mark_above} bytes: choose from 0 to below the {self.buffer}")

    def marked(self, before: float, after: float) -> float:
        """Return the fraction of a round trip's segments that is marked while the queue goes from `before` to
        `after` bytes."""
        low, high = min(before, after), max(before, after)
        if self.mark_above is None or high <= self.mark_above:
            return 0.0
        return 1.0 if low >= self.mark_above else (high - self.mark_above) / (high - low)


class Reno:
    """A congestion window in segments, updated once per round trip (RFC 5681)."""

    decrease = 0.5

    def __init__(self) -> None:
        self.cwnd = 10.0
        self.ssthresh = math.inf

    def grow(self, acked: float, factor: float, seconds: float) -> None:
        """Grow after all of `acked` segments arrived in a round trip of `seconds`. `factor`, MLTCP's F,
        scales congestion avoidance but not slow start."""
        slow = min(acked, max(self.ssthresh - self.cwnd, 0.0))
        self.cwnd += slow
        if acked > slow:
            self.avoid((acked - slow) / self.cwnd, factor, seconds)

    def avoid(self, windows: float, factor: float, seconds: float) -> None:
        """Do congestion avoidance for as many segments as `windows` windows hold."""
        self.cwnd += factor * windows

    def lose(self) -> None:
        """React to the loss of at least one segment."""
        self.cwnd = self.ssthresh = max(self.cwnd * (1.0 - self.decrease), 2.0)

    def see_marks(self, part: float) -> bool:
        """React to the fraction `part` of segments that was marked; return whether the window shrank."""
        if part > 0.0:
            self.lose()
        return part > 0.0


class Cubic(Reno):
    """RFC 9438. F speeds up both growth functions: the clock of the cubic, and the Reno-friendly region."""

    decrease = 0.3
    scaling = 0.4
    """C, segments/s³."""

    def __init__(self) -> None:
        super().__init__()
        self._w_max = self._w_est = self._elapsed = 0.0

    def avoid(self, windows: float, factor: float, seconds: float) -> None:
        """Grow to the larger of the cubic and Reno's window, by at most half a window."""
        if self._w_max == 0.0:  # out of slow start without a loss
            self._restart(self.cwnd)
        self._elapsed += factor * seconds
        self._w_est += factor * windows * 3.0 * self.decrease / (2.0 - self.decrease)
        k = math.cbrt(max(self._w_max - self._start, 0.0) / self.scaling)
        cubic = self.scaling * (self._elapsed - k) ** 3 + self._w_max
        self.cwnd = max(self.cwnd, min(max(cubic, self._w_est), 1.5 * self.cwnd))

    def lose(self) -> None:
        """Shrink; with fast convergence, a loss below the last maximum releases more bandwidth."""
        w_max = self.cwnd if self.cwnd >= self._w_max else self.cwnd * (1.0 - self.decrease / 2.0)
        super().lose()
        self._restart(w_max)

    def _restart(self, w_max: float) -> None:
        self._w_max, self._w_est, self._start, self._elapsed = w_max, self.cwnd, self.cwnd, 0.0


class Dctcp(Reno):
    """RFC 8257, g = 1/16: the window shrinks by half the moving average α of the marked fraction."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = 1.0

    def see_marks(self, part: float) -> bool:
        """Update α, which decays without marks; shrink if there are marks."""
        self.alpha += (part - self.alpha) / 16.0
        if part > 0.0:
            self.cwnd = self.ssthresh = max(self.cwnd * (1.0 - self.alpha / 2.0), 2.0)
        return part > 0.0


CONTROLS: dict[str, type[Reno]] = {"reno": Reno, "cubic": Cubic, "dctcp": Dctcp}


@dataclass(frozen=True)
class Outcome:
    """`times` holds each job's iteration times, s. Of `sent` bytes, `lost` were lost and `marked` were
    marked."""

    times: tuple[tuple[float, ...], ...]
    sent: float
    lost: float
    marked: float


def configured(job: PeriodicJob, gain: Gain | None = None) -> Progress:
    """Return the progress of a job whose bytes are known; its threshold is half its longest pause. Raises
    BadInput for a job without pauses."""
    pause = max((phase.seconds for phase in job.profile.phases if phase.rate == 0.0), default=0.0)
    if not pause > 0.0:
        raise BadInput("a job that never pauses has no iterations that MLTCP could find")
    return Progress(gain or Gain(), round(job.profile.bytes), round(pause / 2.0 * 1e9))


def run(
    jobs: Sequence[PeriodicJob],
    link: Bottleneck,
    iterations: int,
    control: str,
    progress: Sequence[Progress] | None = None,
    *,
    seed: int = 0,
) -> Outcome:
    """Run until all jobs have finished `iterations`. With `progress`, one per job, congestion control is
    MLTCP: all of a job's connections use the job's F. Without it, congestion control is unmodified.

    Raises BadInput for an unknown control, for DCTCP on a link that never marks, and for input that no model
    can run.
    """
    if control not in CONTROLS:
        raise BadInput(f"congestion control {control!r} is unknown; use one of {', '.join(CONTROLS)}")
    if control == "dctcp" and link.mark_above is None:
        raise BadInput("DCTCP needs a link that marks: give it mark_above")
    if progress is not None and len(progress) != len(jobs):
        raise BadInput(f"{len(progress)} progress values for {len(jobs)} jobs: give one each")
    courses = begin(jobs, link.rate, iterations)
    windows = [[CONTROLS[control]() for _ in job.connections] for job in jobs]
    rng = np.random.default_rng(seed)
    pipe = link.rate * link.rtt
    now, queue, trip = 0.0, 0.0, link.rtt
    sent = lost = marked = 0.0
    while True:
        for course in courses:
            course.proceed(now)
        if min(len(course.times) for course in courses) >= iterations:
            return Outcome(tuple(tuple(course.times) for course in courses), sent, lost, marked)
        sending = [j for j, course in enumerate(courses) if course.sending]
        if not sending:
            now, queue, trip = min(course.ready for course in courses), 0.0, link.rtt
            continue
        flows = [(j, c, windows[j][c]) for j in sending for c, left in enumerate(courses[j].left) if left]
        flight = [_in_flight(courses[j], c, window, trip) for j, c, window in flows]
        total = sum(flight)
        dropped = _dropped(flight, total - pipe - link.buffer, rng)
        before, queue = queue, max(total - sum(dropped) - pipe, 0.0)
        part = link.marked(before, queue)
        trip = link.rtt + queue / link.rate
        now += trip
        sent, lost, marked = sent + total, lost + sum(dropped), marked + part * total
        arrived = {j: [0.0] * len(windows[j]) for j in sending}
        for (j, c, _), its_flight, its_dropped in zip(flows, flight, dropped, strict=True):
            arrived[j][c] = its_flight - its_dropped
        factors = dict.fromkeys(sending, 1.0)
        if progress is not None:
            for j in sending:
                progress[j].acked(round(now * 1e9), round(sum(arrived[j])))
                factors[j] = float(progress[j].factor)
        for (j, _, window), its_flight, its_dropped in zip(flows, flight, dropped, strict=True):
            if its_dropped:
                window.lose()
            elif not window.see_marks(part) and its_flight >= window.cwnd * SEGMENT * (1.0 - 1e-9):
                window.grow(its_flight / SEGMENT, factors[j], trip)
        for j in sending:
            courses[j].deliver(arrived[j], now, least=1e-6)


def _in_flight(course: Course, connection: int, window: Reno, trip: float) -> float:
    """Return the bytes that a connection has in flight: the least of its window, its bytes left, and its part
    of what the job can send in a round trip."""
    active = sum(left > 0.0 for left in course.left)
    return min(window.cwnd * SEGMENT, course.left[connection], course.rate * trip / active)


def _dropped(flight: list[float], excess: float, rng: np.random.Generator) -> list[float]:
    """Draw which of the bytes in `flight` are the `excess` bytes, segment by segment."""
    if excess <= 0.0:
        return [0.0] * len(flight)
    drawn = rng.multinomial(math.ceil(excess / SEGMENT), np.array(flight) / sum(flight))
    return [min(float(n * SEGMENT), f) for n, f in zip(drawn.tolist(), flight, strict=True)]
