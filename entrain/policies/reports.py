"""Policies' reports about a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from machine.interval import percentile

PERCENTILES = (50, 90, 99)
"""The percentiles of delays in results.json."""


@dataclass(frozen=True)
class Learned:
    """What MLTCP learned about one job on one host."""

    job: str
    host: str
    iterations: int
    """Number of iterations that it detected."""
    total_bytes: int
    """Bytes of an iteration; 0: not learned yet."""
    gap_ms: float
    """Shortest pause between iterations; 0: not learned yet."""
    relearned: int
    """How often it started learning again."""


@dataclass(frozen=True)
class HostReport:
    """What the agent of one host did in a run."""

    host: str
    events: tuple[str, ...]
    """The latest events, in words."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of decisions, slots without an answer, refused progress entries, and so on."""
    carriers: Mapping[str, int] = field(default_factory=dict)
    """Number of packets with a slot header, by kind."""
    negotiation_ms: tuple[float, ...] = ()
    """Delay of each negotiation (the latest few thousand)."""
    decision_ms: tuple[float, ...] = ()
    """Computing time of each decision (the latest few thousand)."""
    seconds: float = 0.0
    """The period that the following figures cover."""
    cpu_s: float = 0.0
    """The agent's CPU time."""
    carrier_bytes: int = 0
    """Bytes of carriers and feedback that left the host."""
    link_mbps: float = 0.0
    """Rate of the host's link."""
    skew_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By other host's address: how much earlier its slots begin (lower and upper bound)."""
    late_ms: tuple[float, ...] = ()
    """How much later than planned rounds of decisions began (the latest few thousand)."""
    link_s: Mapping[str, float] = field(default_factory=dict)
    """What became of the host's link, in seconds: see `hostbpf.scheduling.thread.LinkTime`."""

    @property
    def cpu_share(self) -> float | None:
        """The agent's CPU time as a fraction of one core, or None if it did not answer."""
        return self.cpu_s / self.seconds if self.seconds else None

    @property
    def carrier_mbps(self) -> float | None:
        """Mean rate of carriers and feedback, or None if the agent did not answer."""
        return self.carrier_bytes * 8 / self.seconds / 1e6 if self.seconds else None

    @property
    def carrier_share(self) -> float | None:
        """Their fraction of the host's link, in the sending direction."""
        return None if self.carrier_mbps is None else self.carrier_mbps / self.link_mbps

    def document(self) -> dict[str, Any]:
        """Return the report as in results.json."""
        return {
            "host": self.host,
            "counts": dict(self.counts),
            "carriers": dict(self.carriers),
            "events": list(self.events),
            "negotiation_ms": percentiles(self.negotiation_ms),
            "decision_ms": percentiles(self.decision_ms),
            "late_ms": percentiles(self.late_ms),
            "link_s": dict(self.link_s),
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_share,
            "carrier_bytes": self.carrier_bytes,
            "carrier_mbps": self.carrier_mbps,
            "carrier_share": self.carrier_share,
            "skew_ms": {peer: list(bounds) for peer, bounds in self.skew_ms.items()},
        }


def percentiles(values: Sequence[float]) -> dict[str, JsonValue] | None:
    """Return `PERCENTILES` of the values by name (`p50`, …), None for those that need more values, or None
    without values."""
    return {f"p{percent}": percentile(values, percent) for percent in PERCENTILES} if values else None


@dataclass(frozen=True)
class Paced:
    """How jobs were shifted against each other, and kept to it (policy `cassini`)."""

    score: float | None = None
    """The mean score of the links that jobs share, as first solved; None: there was nothing to solve."""
    shifts_ms: Mapping[str, float] = field(default_factory=dict)
    """By job: by how much it was delayed when it got its first pace."""
    drift_ms_p99: float | None = None
    """How much later than their pace ranks' iterations could have started, except when that was new."""
    corrections: int = 0
    """How often drift was corrected: by grids that were moved, and by jobs that waited for theirs."""
    adjustments_per_minute: float | None = None
    """The same, per job and minute with a pace."""
    waited: float | None = None
    """The part of their time with a pace that ranks waited for it, except when that was new."""
    periods_ms: Mapping[str, float] = field(default_factory=dict)
    """By job: the period of its pace, at the end."""
    solved: int = 0
    """How often shifts were solved for."""
    since: Mapping[str, int] = field(default_factory=dict)
    """By job: the iteration that was the last to start without a pace, from 0."""
    events: tuple[str, ...] = ()
    """What happened, in words."""


@dataclass(frozen=True)
class Report:
    """What a policy adds to the results of a run."""

    learned: tuple[Learned, ...] = ()
    """Key `learned` of `results.json`."""
    scheduling: tuple[HostReport, ...] = ()
    """Key `scheduling` of `results.json`."""
    paced: Paced = field(default_factory=Paced)
    """Keys `score`, `shifts_ms`, `drift_ms_p99`, `corrections` and `pacing` of `results.json`."""
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    """Anything else, under the key `policy_report`."""
