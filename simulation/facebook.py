"""Random coflows with the distributions of Facebook's published trace.

The trace (FB2010-1Hr-150-0.txt of the project coflow/coflow-benchmark) states no licence. Entrain therefore
does not contain the file, only the distributions measured from it. Coflows belong to the four classes of
Varys (SIGCOMM 2014): short or long (the longest flow has 5 MB or more), narrow or wide (more than 50 flows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

PORTS = 150
COFLOWS = 526
WIDE_FLOWS = 51
"""A coflow of this many flows or more is wide."""

_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_GAPS_S = (0.007, 0.28, 1.07, 3.06, 9.2, 18.4, 24.7, 82.4)
"""Quantiles of the time between arrivals, s."""

Quantiles = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Class:
    """A class of coflows: its share of all coflows, and quantiles of the number of mappers, the number of
    reducers, the longest flow (MB), and the ratio of the longest flow to the mean. `coupling` correlates the
    number of reducers with the longest flow."""

    share: float
    wide: bool
    mappers: Quantiles
    reducers: Quantiles
    longest_mb: Quantiles
    skew: Quantiles
    coupling: float = 0.0


_CLASSES = (
    _Class(  # short and narrow
        share=0.59,
        wide=False,
        mappers=(1, 1, 1, 3, 7, 23, 27, 30),
        reducers=(1, 1, 1, 1, 1, 2, 33, 48),
        longest_mb=(1, 1, 1, 1, 1, 2, 3, 4),
        skew=(1, 1, 1, 1, 1, 1, 2.2, 3.3),
    ),
    _Class(  # long and narrow
        share=0.17,
        wide=False,
        mappers=(1, 1, 1, 2, 2, 4, 6.5, 16),
        reducers=(1, 1, 1, 1, 6, 35, 42, 50),
        longest_mb=(5, 6, 15, 25, 60, 145, 365, 2180),
        skew=(1, 1, 1, 1, 1.06, 2.5, 4, 25),
    ),
    _Class(  # short and wide
        share=0.11,
        wide=True,
        mappers=(1, 2.6, 25, 63, 121, 145, 147, 147),
        reducers=(1, 5, 20, 55, 69, 86, 133, 136),
        longest_mb=(1, 1, 1, 2, 3, 4, 4, 4),
        skew=(1, 1, 1, 1.5, 2, 2.9, 2.9, 3.8),
    ),
    _Class(  # long and wide
        share=0.13,
        wide=True,
        mappers=(1, 4, 13, 30, 138, 147, 147, 147),
        reducers=(4, 9, 16, 113, 122, 141, 143, 145),
        longest_mb=(5, 7.7, 16, 50, 156, 253, 504, 2470),
        skew=(1, 1.07, 1.8, 2.6, 3.2, 5.5, 11, 75),
        coupling=0.6,
    ),
)


def facebook_coflows(seed: int = 0) -> str:
    """Return a trace in coflow-benchmark's format, with as many ports and coflows as the published trace.

    As in that trace, every flow is a whole number of MB. The sizes of a coflow's flows are drawn below the
    longest so that they have the drawn mean on average.
    """
    rng = np.random.default_rng(seed)
    shares = np.array([kind.share for kind in _CLASSES])
    lines = [f"{PORTS} {COFLOWS}"]
    arrival_s = 0.0
    for number in range(1, COFLOWS + 1):
        mappers, flow_mb = _coflow(rng, _CLASSES[rng.choice(len(_CLASSES), p=shares)])
        sources = rng.permutation(PORTS)[:mappers]
        sinks = rng.permutation(PORTS)[: len(flow_mb)]
        reducers = [f"{port}:{mappers * mb}" for port, mb in zip(sinks, flow_mb, strict=True)]
        fields = (number, round(1000 * arrival_s), mappers, *sources, len(reducers), *reducers)
        lines.append(" ".join(map(str, fields)))
        arrival_s += _quantile(_GAPS_S, rng.random())
    return "\n".join(lines) + "\n"


def _coflow(rng: np.random.Generator, kind: _Class) -> tuple[int, list[int]]:
    """Draw a coflow: its number of mappers, and the MB that each mapper sends to each reducer."""
    while True:
        mappers = round(_quantile(kind.mappers, rng.random()))
        rank = rng.normal()
        reducers = round(_quantile(kind.reducers, ndtr(rank)))
        if (mappers * reducers >= WIDE_FLOWS) == kind.wide:
            break
    rank = kind.coupling * rank + math.sqrt(1.0 - kind.coupling**2) * rng.normal()
    longest = round(_quantile(kind.longest_mb, ndtr(rank)))
    # U^(s-1) of a uniform U has the mean 1/s.
    part = rng.random(reducers) ** (_quantile(kind.skew, rng.random()) - 1.0)
    part[0] = 1.0
    return mappers, [max(1, round(longest * each)) for each in part]


def _quantile(values: Quantiles, level: float) -> float:
    """Return the value at `level` (0 to 1), interpolated geometrically between the values at `_LEVELS`."""
    return float(np.exp(np.interp(level, _LEVELS, np.log(values))))
