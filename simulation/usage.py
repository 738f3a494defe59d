"""How much each link carries over time."""

from __future__ import annotations

import numpy as np

from schedulers.compiled import Floats, Routes, compiled
from simulation.flows import FlowTable


@compiled
def _spread(
    links: Routes,
    remaining: Floats,
    rate: Floats,
    first: int,
    last: int,
    begin: float,
    end: float,
    width: float,
    carried: Floats,
) -> None:
    for f in range(first, last):
        if remaining[f] <= 0.0 or rate[f] <= 0.0:
            continue
        stop = min(end, begin + remaining[f] / rate[f])
        b = int(begin // width)
        while b * width < stop:
            part = rate[f] * (min(stop, (b + 1) * width) - max(begin, b * width))
            for link in links[f]:
                if link < 0:
                    break
                carried[b, link] += part
            b += 1


class Usage:
    """Bytes carried per bin of `width` s and link: `carried` (bins, links)."""

    def __init__(self, links: int, width: float) -> None:
        if not width > 0.0:
            raise ValueError(f"a bin is {width} s wide; give a positive number")
        self.width = width
        self.carried: Floats = np.zeros((64, links))

    def add(self, flows: FlowTable, first: int, last: int, begin: float, end: float) -> None:
        """Account for what flows `first` to `last` - 1 send at their rates from `begin` to `end` s."""
        bins = int(end // self.width) + 1
        if bins > len(self.carried):
            more = np.zeros((max(bins, 2 * len(self.carried)) - len(self.carried), self.carried.shape[1]))
            self.carried = np.concatenate([self.carried, more])
        _spread(flows.links, flows.remaining, flows.rate, first, last, begin, end, self.width, self.carried)

    def utilisation(self, capacity: Floats, until: float) -> Floats:
        """Return the share of `capacity` used, (bins to `until` s, links)."""
        bins = int(np.ceil(until / self.width))
        result: Floats = self.carried[:bins] / (capacity * self.width)
        return result
