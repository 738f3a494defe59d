"""How far other hosts' slots are ahead of this host's, as the round trips of its carriers tell."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

LATE_UNIT_NS = 1 << 10  # LATE_SHIFT
_SAMPLES = 64  # of a peer: of the latest so many, the quickest round trip counts
_LASTS_S = 60.0


class Offset(NamedTuple):
    """By how much a peer's slots begin before this host's, in ns: from `low` to `high`; negative: after."""

    low: int
    high: int


def offset(position_ns: int, late_ns: int, rtt_ns: int) -> Offset:
    """What one round trip says; it is as exact as it was quick.

    A carrier left this host `position_ns` after its base slot had begun here, and came to the peer `late_ns`
    after that slot had begun there, as the feedback tells. Let the peer be ahead by o, and the way there take
    d: then late = position + d + o. The feedback was back after `rtt_ns`, so 0 <= d <= rtt, and late -
    position - rtt <= o <= late - position. (NTP, RFC 5905 section 8, whose estimate is the middle.) Feedback
    rounds what is late down to LATE_UNIT_NS.
    """
    least = late_ns - position_ns
    return Offset(least - rtt_ns, least + LATE_UNIT_NS)


class Skews:
    """The offsets of peers, by their addresses: of recent round trips the quickest (RFC 5905, section 10).

    Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int, Offset]]] = {}
        self._lock = threading.Lock()

    def add(self, peer: str, position_ns: int, late_ns: int, rtt_ns: int) -> None:
        """Take one round trip; see `offset`."""
        sample = (time.monotonic(), rtt_ns, offset(position_ns, late_ns, rtt_ns))
        with self._lock:
            self._samples.setdefault(peer, deque(maxlen=_SAMPLES)).append(sample)

    def clear(self) -> None:
        """This host's own slots have moved."""
        with self._lock:
            self._samples.clear()

    def read(self) -> dict[str, Offset]:
        """The offset of each peer that has answered in the last minute."""
        since = time.monotonic() - _LASTS_S
        with self._lock:
            for peer in [each for each, samples in self._samples.items() if samples[-1][0] < since]:
                del self._samples[peer]
            recent = {
                peer: [(rtt, bounds) for at, rtt, bounds in samples if at >= since]
                for peer, samples in self._samples.items()
            }
        return {peer: min(samples)[1] for peer, samples in recent.items()}
