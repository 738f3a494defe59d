"""MLTCP: congestion windows that grow with the job's progress through its training iteration (Cassini and
MLTCP thesis, equation 1.2).

cwnd += F(bytes_ratio) * additive increase, F(r) = slope * r + intercept. The kernel side of the live system
(`hostbpf/bpf/mltcp.h` and `mltcp_gain.h`) computes the same with the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulers.compiled import Floats

UNIT = 1024
"""Slope and intercept are in units of 1/1024."""

LEARN_ITERATIONS = 4
LEARN_GAP_NS = 5_000_000
"""Shorter gaps are never learned as the computation phase."""
LEARN_BYTES = 16_384
"""Fewer bytes than this are not an iteration: connections are being set up."""
LEARN_GAPS = 8
"""If an iteration lasts longer than this many times the longest gap, that gap was not a computation phase."""


@dataclass(frozen=True)
class Gain:
    """F(r) = slope * r + intercept, both in 1/1024; by default the paper's 1.75 r + 0.25. Raises ValueError
    if F could be 0 or less, because windows would not grow."""

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

    def each(self, ratios: Floats) -> Floats:
        """Return F of each of `ratios`, any shape, in [0, 1]."""
        result: Floats = (self.slope * ratios + self.intercept) / UNIT
        return result


FAIR = Gain(0, UNIT)
"""F = 1: fair sharing, without MLTCP."""


@dataclass
class Progress:
    """A job's progress through its iteration, inferred from its acknowledgements alone.

    Bytes and F are those of the job: all of its connections from one host count together. An acknowledgement
    starts a new iteration when it arrives more than a threshold after the previous one. The threshold must be
    shorter than the computation and longer than any round trip or retransmission stall. If total_bytes or
    gap_ns is None, it is learned. Learning starts again when four iterations in a row are off by more than an
    eighth. It also does when the bytes of four iterations arrive without a boundary, which means that the
    pauses have become shorter than the threshold.
    """

    gain: Gain = field(default_factory=Gain)
    total_bytes: int | None = None
    gap_ns: int | None = None

    bytes: int = field(default=0, init=False)
    """Bytes acknowledged in this iteration."""
    last_bytes: int = field(default=0, init=False)
    """Bytes acknowledged in the previous iteration."""
    iteration: int = field(default=0, init=False)
    learned_total: int = field(default=0, init=False)
    """Bytes per iteration as learned; 0 while learning."""
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
        """The longest gap within an iteration: an acknowledgement after a longer one starts a new
        iteration."""
        if gap_ns := self.gap_ns or self.learned_gap_ns:
            return gap_ns
        # The longest gap may not have been a computation phase but, say, the time before training.
        if (self._last_ack_ns or 0) > self._begin_ns + LEARN_GAPS * self._longest_gap_ns:
            return LEARN_GAP_NS
        return max(self._longest_gap_ns // 2, LEARN_GAP_NS)

    @property
    def factor(self) -> Fraction:
        """The present F; 1 while the bytes of an iteration are unknown."""
        total = self.total_bytes or self.learned_total
        return self.gain.at(self.bytes, total) if total else Fraction(1)

    def acked(self, now_ns: int, size: int) -> None:
        """Count `size` bytes acknowledged at `now_ns` (by any monotonic clock)."""
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
        # The samples so far were parts of iterations, or the longest gap was not a computation phase.
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
