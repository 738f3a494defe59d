"""How full the links' queues get in a run, and what they drop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.queues import Queue, by_link, since

LOOK_S = 0.1
"""How often backlogs are read."""


@dataclass(frozen=True)
class QueueUse:
    """The queues of one direction of a link in one run."""

    link: str
    dropped_packets: int
    """As the kernel counts them: an offloaded packet, of up to 64 KB, counts once."""
    backlog_bytes_max: int
    """The largest of the readings, `LOOK_S` apart: the queue may have been longer between them."""
    limit_bytes: int
    """The limit of the queue at the interface. 0: not known, or not in bytes."""


class QueueWatch:
    """Watches a run's queues from its start: call `look` regularly, and `used` at the end.

    `read` gives the queues that cost little to read.
    """

    def __init__(self, before: Sequence[Queue], read: Callable[[], Sequence[Queue]]) -> None:
        self._before = before
        self._read = read
        self._longest: dict[str, int] = {}
        self._due = 0.0

    def look(self) -> None:
        """Read the backlogs, if the last reading is `LOOK_S` ago."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + LOOK_S
            self._note(self._read())

    def used(self, now: Sequence[Queue]) -> tuple[QueueUse, ...]:
        """Return what has become of each queue, given all of them at the end."""
        self._note(now)
        return tuple(
            QueueUse(queue.link, queue.dropped_packets, self._longest[queue.link], queue.limit_bytes)
            for queue in by_link(since(now, self._before))
        )

    def _note(self, queues: Sequence[Queue]) -> None:
        for queue in by_link(queues):
            self._longest[queue.link] = max(queue.backlog_bytes, self._longest.get(queue.link, 0))
