"""What policies say about a run when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import JsonValue

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Learned:
    """What MLTCP found out about a job on one host: how many iterations it saw, what it took for the bytes of
    one and for the shortest pause between two (0: nothing yet), and how often it began anew."""

    job: str
    host: str
    iterations: int
    total_bytes: int
    gap_ms: float
    relearned: int


@dataclass(frozen=True)
class HostReport:
    """What the agent of one host did in a run.

    counts: decisions, slots without an answer, refused progress and the like; carriers: packets with a slot
    header; events: the latest, in words. Delays are in ms, one for each decision (the latest some thousand).
    Within `seconds` the agent took `cpu_s` of processor time, and `carrier_bytes` of carriers and feedback
    left the host by its link of `link_mbps`.
    """

    host: str
    events: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    carriers: Mapping[str, int] = field(default_factory=dict)
    negotiation_ms: tuple[float, ...] = ()
    decision_ms: tuple[float, ...] = ()
    seconds: float = 0.0
    cpu_s: float = 0.0
    carrier_bytes: int = 0
    link_mbps: float = 0.0
    skew_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By how much the slots of another host (address) begin before this one's: at least, at most."""

    @property
    def cpu_share(self) -> float | None:
        """Of one processor; None: the agent has not answered."""
        return self.cpu_s / self.seconds if self.seconds else None

    @property
    def carrier_mbps(self) -> float | None:
        """Mean rate of carriers and feedback; None: the agent has not answered."""
        return self.carrier_bytes * 8 / self.seconds / 1e6 if self.seconds else None

    @property
    def carrier_share(self) -> float | None:
        """Their part of the host's link, in the direction from the host."""
        return None if self.carrier_mbps is None else self.carrier_mbps / self.link_mbps

    def document(self) -> dict[str, Any]:
        """As in results.json."""
        return {
            "host": self.host,
            "counts": dict(self.counts),
            "carriers": dict(self.carriers),
            "events": list(self.events),
            "negotiation_ms": _percentiles(self.negotiation_ms),
            "decision_ms": _percentiles(self.decision_ms),
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_share,
            "carrier_bytes": self.carrier_bytes,
            "carrier_mbps": self.carrier_mbps,
            "carrier_share": self.carrier_share,
            "skew_ms": {peer: list(bounds) for peer, bounds in self.skew_ms.items()},
        }


def _percentiles(values: tuple[float, ...]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)}


@dataclass(frozen=True)
class Report:
    """What a policy adds to the results of a run.

    learned and scheduling are the keys of those names in `results.json`; `values` is anything else, under the
    key `policy_report`.
    """

    learned: tuple[Learned, ...] = ()
    scheduling: tuple[HostReport, ...] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)
