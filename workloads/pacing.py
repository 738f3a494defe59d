"""Start a process's iterations at the pace that its host's agent sets (docs/cassini.md)."""

from __future__ import annotations

import time
from typing import Any

from schedulers.cassini.pace import Follower, Kind, Pace, Start
from wire.progress import Publisher, StartFields


def record(start: Start) -> dict[str, Any]:
    """Return what an iteration's record says about its start (`workloads.records.Iteration`)."""
    if start.kind is Kind.FREE:
        return {}
    return {"pace": start.kind.name.lower(), "drift_ns": start.drift_ns, "waited_ns": start.waited_ns}


class Pacing:
    """The iterations of one process, which publishes its progress. One thread uses it.

    The ranks of a job decide alike, because they follow one grid and their iterations end together. Where
    one decides otherwise all the same, the others wait for its data, and it is the job that waits.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._follower = Follower()
        self._said = StartFields(0, 0, 0, 0, 0, 0, 0, 0)

    def begin(self) -> Start:
        """Note that an iteration could begin now. Return when it starts, in CLOCK_MONOTONIC; the caller waits
        until then."""
        now = time.monotonic_ns()
        start = self._follower.start(self._pace(now), now)
        said = self._said
        self._said = StartFields(
            sequence=0,
            starts=said.starts + 1,
            started_ns=start.at_ns,
            lasted_ns=now - said.started_ns if said.starts else 0,
            drift_ns=start.late_ns,
            waited_ns=said.waited_ns + start.waited_ns,
            shifts=said.shifts + (start.kind is Kind.SHIFTED),
            corrections=said.corrections + (start.kind is Kind.CORRECTED),
        )
        self._publisher.started(self._said)
        return start

    def _pace(self, now_ns: int) -> Pace | None:
        found = self._publisher.pace(now_ns)
        try:
            return Pace(found.anchor_ns, found.period_ns, found.bound_ns) if found else None
        except ValueError:  # whoever wrote it is not believed
            return None
