"""ECN marks in a fluid network: how many segments a link marks while several flows fill it.

Fluid rates have no queue. Where flows of DCTCP meet, theirs settles: each window saws between W* and
(1 - α/2) W*, and the part α of all segments is marked (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from schedulers.compiled import Floats, Ints, Routes, compiled


@dataclass(frozen=True)
class Marking:
    """Switches that mark segments of `segment` bytes from a queue of `threshold` bytes on, where the round
    trip is `rtt` s. The defaults are those of Cassini's testbed: 1,000 cells of 80 bytes (4.5.1)."""

    segment: float = 1500.0
    rtt: float = 25e-6
    threshold: float = 80e3

    def part(self, flows: float, capacity: float) -> float:
        """Return the part of segments that a link of `capacity` bytes/s marks while `flows` share it.

        A flow whose window grows F times as fast (MLTCP) counts F times: α ≈ √(2 F / W*), and W* is in
        proportion to F.
        """
        window = (capacity * self.rtt + self.threshold) / self.segment
        return min(1.0, math.sqrt(2.0 * flows / window))


@compiled
def queueing(
    links: Routes, rows: Ints, rate: Floats, offered: Floats, capacity: Floats, paced: bool
) -> Floats:
    """Return which links queue (links,): 1 or 0, if the flows `rows` offer and get these rates.

    A link queues if more is offered than it carries, or if it is full and its flows, which are not `paced`,
    come over several others: then it is what holds them back. A sender's own link queues in the host.
    """
    n_links = len(capacity)
    result = np.zeros(n_links)
    load, wanted = np.zeros(n_links), np.zeros(n_links)
    before = np.full(n_links, -1)
    for f in rows:
        for hop in range(1, links.shape[1]):
            link = links[f, hop]
            if link < 0:
                break
            load[link] += rate[f]
            wanted[link] += offered[f]
            if before[link] == -1:
                before[link] = links[f, hop - 1]
            elif before[link] != links[f, hop - 1]:
                before[link] = -2
    for link in range(n_links):
        full = load[link] >= capacity[link] * (1.0 - 1e-6) and before[link] == -2 and not paced
        if full or wanted[link] > capacity[link] * (1.0 + 1e-6):
            result[link] = 1.0
    return result
