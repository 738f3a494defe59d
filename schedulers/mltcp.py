"""MLTCP: congestion windows that grow with the job's progress through its training iteration (Cassini and
MLTCP thesis, equation 1.2).

cwnd += F(bytes_ratio) * additive increase, F(r) = slope * r + intercept. The kernel's half of the live system
(`hostbpf/bpf/mltcp.h` and `mltcp_gain.h`) computes the same, in the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

UNIT = 1024
"""Slope and intercept are in units of 1/1024."""

LEARN_ITERATIONS = 4
LEARN_GAP_NS = 5_000_000
"""Shorter gaps are never learned as the computing phase."""
LEARN_BYTES = 16_384
"""What ends with fewer is no iteration: connections are being made."""
LEARN_GAPS = 8
"""An iteration that lasts longer than so many of the longest gap: that gap was no computing phase."""


@dataclass(frozen=True)
class Gain:
    """F(r) = slope * r + intercept, both in 1/1024; by default the paper's 1.75 r + 0.25. Raises ValueError
    where F could be 0 or less, at which no window grows."""

    slope: int = 7 * UNIT // 4
    intercept: int = UNIT // 4

    def __post_init__(self) -> None:
        if self.slope < 0 or self.intercept <= 0:
            raise ValueError(
                f"F is {self.slope} r + {self.intercept}, in 1/{UNIT}: the slope must be at least 0 and the "
                "intercept above 0"
            )

    def at(self, sent: int, total: int) -> Fraction:
        """Return F(min(1, sent / total)) exactly; raise ValueError unless `total` > 0.

        With the paper's constants it is (7 sent + total) / (4 total).
        """
        if total <= 0:
            raise ValueError(f"an iteration has {total} bytes; it needs more than 0")
        sent = min(max(sent, 0), total)
        return Fraction(self.slope * sent + self.intercept * total, UNIT * total)

    def of(self, ratio: float) -> float:
        """Return F(ratio) for `ratio` in [0, 1]."""
        return (self.slope * ratio + self.intercept) / UNIT


FAIR = Gain(0, UNIT)
"""F is 1: the variant without MLTCP."""


@dataclass
class Progress:
    """How far a job is in its iteration, told by nothing but its acknowledgements.

    Bytes are the job's, over all of its connections from one host; so is F. An acknowledgement opens a new
    iteration when it comes more than a threshold after the one before. The threshold must be below the time
    of computing and above the longest round trip or retransmission stall. Where total_bytes or gap_ns is
    None, it is learned, and learned anew when four iterations in a row are off by more than an eighth, or
    when the bytes of four come without a boundary: the pauses have become shorter than the threshold.
    """

    gain: Gain = field(default_factory=Gain)
    total_bytes: int | None = None
    gap_ns: int | None = None

    bytes: int = field(default=0, init=False)
    """Acknowledged in this iteration."""
    last_bytes: int = field(default=0, init=False)
    """And in the one before."""
    iteration: int = field(default=0, init=False)
    learned_total: int = field(default=0, init=False)
    """0: still learning."""
    learned_gap_ns: int = field(default=0, init=False)
    relearned: int = field(default=0, init=False)
    _last_ack_ns: int | None = field(default=None, init=False)
    _begin_ns: int = field(default=0, init=False)
    _longest_gap_ns: int = field(default=0, init=False)
    _shortest_gap_ns: int = field(default=0, init=False)
    _samples: list[int] = field(default_factory=list, init=False)
    _misfits: int = field(default=0, init=False)

    @property
    def threshold_ns(self) -> int:
        """The gap from which on an acknowledgement opens a new iteration."""
        if gap_ns := self.gap_ns or self.learned_gap_ns:
            return gap_ns
        # The longest gap may have been no computing phase but, say, the time before training.
        if (self._last_ack_ns or 0) > self._begin_ns + LEARN_GAPS * self._longest_gap_ns:
            return LEARN_GAP_NS
        return max(self._longest_gap_ns // 2, LEARN_GAP_NS)

    @property
    def factor(self) -> Fraction:
        """F now; 1 as long as the iteration's bytes are not known."""
        total = self.total_bytes or self.learned_total
        return self.gain.at(self.bytes, total) if total else Fraction(1)

    def acked(self, now_ns: int, size: int) -> None:
        """Count `size` bytes acknowledged at `now_ns` (any clock that does not go back)."""
        if self._last_ack_ns is None:
            self._begin_ns = now_ns
        elif now_ns - self._last_ack_ns > self.threshold_ns:
            if self.total_bytes is None or self.gap_ns is None:
                self._learn(now_ns - self._last_ack_ns)
            self.last_bytes, self.bytes = self.bytes, 0
            self._begin_ns = now_ns
            self.iteration += 1
        elif self.learned_total and self.bytes > LEARN_ITERATIONS * self.learned_total:
            self._learn_anew()
        self._last_ack_ns = now_ns
        self.bytes += size

    def _learn(self, gap_ns: int) -> None:
        """Learn from the iteration that ended in a pause of `gap_ns`."""
        if self.learned_total:
            off = abs(self.bytes - self.learned_total)
            self._misfits = self._misfits + 1 if off > self.learned_total // 8 else 0
            if self._misfits < LEARN_ITERATIONS:
                return
            self._learn_anew()
        if self.bytes < LEARN_BYTES:
            return
        longest = self._longest_gap_ns
        # What looked like iterations so far were parts of them, or the longest gap was no computing phase.
        if gap_ns > 2 * longest or (self.gap_ns is None and gap_ns < longest // 2):
            self._samples.clear()
            self._longest_gap_ns = self._shortest_gap_ns = gap_ns
            return
        self._longest_gap_ns = max(self._longest_gap_ns, gap_ns)
        self._shortest_gap_ns = min(self._shortest_gap_ns, gap_ns)
        if len(self._samples) < LEARN_ITERATIONS:
            self._samples.append(self.bytes)
        if len(self._samples) == LEARN_ITERATIONS:
            self.learned_total = sum(sorted(self._samples)[1:3]) // 2
            self.learned_gap_ns = self._shortest_gap_ns // 4 * 3

    def _learn_anew(self) -> None:
        self.learned_total = self.learned_gap_ns = self._longest_gap_ns = self._misfits = 0
        self._samples.clear()
        self.relearned += 1
