"""What became of the jobs of a cluster: when each ran, what it held, and why it waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from entrain.placing import held
from machine.interval import percentile
from schedulers.placement.cluster import Placement
from schedulers.placement.queue import Waiting
from schedulers.placement.stages import Cause


@dataclass(frozen=True)
class Stay:
    """A job's stay in the cluster. Times are in s since the run began.

    It starts when it is admitted, and ends with its last iteration; starting its ranks is part of it.
    """

    placement: Placement
    arrival_s: float
    start_s: float
    end_s: float
    changed: int = 0
    """Circuits made for it."""
    waiting: tuple[Waiting, ...] = ()

    @property
    def jwt_s(self) -> float:
        """Job waiting time: from its arrival to its start."""
        return self.start_s - self.arrival_s

    @property
    def jrt_s(self) -> float:
        """Job running time: from its start to its end."""
        return self.end_s - self.start_s

    @property
    def jct_s(self) -> float:
        """Job completion time: from its arrival to its end."""
        return self.end_s - self.arrival_s

    def document(self) -> dict[str, Any]:
        """Return what `results.json` says of a job besides its iterations."""
        return {
            "arrival_s": self.arrival_s,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "jrt_s": self.jrt_s,
            "jwt_s": self.jwt_s,
            "jct_s": self.jct_s,
            **held(self.placement, self.changed, self.waiting),
        }


@dataclass(frozen=True)
class Stays:
    """The stays of all jobs of a run, in the order of its jobs, and how many attempts to place one failed."""

    stays: tuple[Stay, ...]
    failed_attempts: Mapping[Cause, int]

    @property
    def circuits_changed(self) -> int:
        """Circuits made in the whole run."""
        return sum(stay.changed for stay in self.stays)

    def document(self) -> dict[str, Any]:
        """Return what `results.json` says of a run besides its jobs."""
        return {
            **times(self.stays),
            "fragmentation": {
                "gpu": self.failed_attempts.get("gpus", 0),
                "network": self.failed_attempts.get("network", 0),
            },
            "circuits_changed": self.circuits_changed,
        }


def times(stays: Sequence[Stay]) -> dict[str, float | None]:
    """Return mean and p99 of the jobs' running, waiting and completion times; no p99 of few jobs."""
    figures: dict[str, float | None] = {}
    for key in ("jrt_s", "jwt_s", "jct_s"):
        values = [getattr(stay, key) for stay in stays]
        figures[f"{key}_mean"], figures[f"{key}_p99"] = fmean(values), percentile(values, 99)
    return figures
