"""Traffic per link over time."""

from __future__ import annotations

import math

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints, Routes, compiled
from simulation.flows import FlowTable

MOST_CELLS = 20_000_000
"""The largest product of bins and links in a record (160 MB)."""


@compiled
def _spread(links: Routes, rate: float, begin: float, end: float, width: float, carried: Floats) -> None:
    b = int(begin // width)
    while b * width < end:
        part = rate * (min(end, (b + 1) * width) - max(begin, b * width))
        for link in links:
            if link < 0:
                break
            carried[b, link] += part
        b += 1


@compiled
def _spread_flows(
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
        if remaining[f] > 0.0 and rate[f] > 0.0:
            _spread(links[f], rate[f], begin, min(end, begin + remaining[f] / rate[f]), width, carried)


@compiled
def _spread_classes(
    classes: Ints,
    n: int,
    links: Routes,
    count: Floats,
    rate: Floats,
    since: Floats,
    end: float,
    width: float,
    carried: Floats,
) -> None:
    for i in range(n):
        c = classes[i]
        if count[c] > 0.0 and rate[c] > 0.0:
            _spread(links[c], count[c] * rate[c], since[c], end, width, carried)
        since[c] = end


class Usage:
    """Bytes carried per bin of `width` s and link: `carried` (bins, links)."""

    def __init__(self, links: int, width: float) -> None:
        if not width > 0.0 or not math.isfinite(width):
            raise ValueError(f"a bin is {width} s wide; give a positive number")
        self.width = width
        self.carried: Floats = np.zeros((64, links))

    def add(self, flows: FlowTable, first: int, last: int, begin: float, end: float) -> None:
        """Add the traffic of flows `first` to `last` - 1 at their rates from `begin` to `end` (s)."""
        self._reach(end)
        _spread_flows(
            flows.links, flows.remaining, flows.rate, first, last, begin, end, self.width, self.carried
        )

    def add_classes(
        self, classes: Ints, n: int, links: Routes, count: Floats, rate: Floats, since: Floats, end: float
    ) -> None:
        """Add the traffic of `classes[:n]`, each with `count` flows at `rate`, from `since` to `end` (s); set
        `since` to `end`."""
        self._reach(end)
        _spread_classes(classes, n, links, count, rate, since, end, self.width, self.carried)

    def utilisation(self, capacity: Floats, until: float) -> Floats:
        """Return the utilisation as a share of `capacity`, (bins up to `until` s, links)."""
        self._reach(until)
        result: Floats = self.carried[: math.ceil(until / self.width)] / (capacity * self.width)
        return result

    def _reach(self, end: float) -> None:
        bins, links = int(end // self.width) + 1, self.carried.shape[1]
        if bins <= len(self.carried):
            return
        if bins * links > MOST_CELLS:
            raise BadInput(
                f"usage in bins of {self.width:g} s has {bins} bins or more for each of {links} links; "
                f"give --usage at least {end * links / MOST_CELLS:.2g}, better much more"
            )
        more = np.zeros((max(bins, 2 * len(self.carried)) - len(self.carried), links))
        self.carried = np.concatenate([self.carried, more])
