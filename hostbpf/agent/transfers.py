"""How far the training processes of a host are with what they send, for a coordinator of many hosts."""

from __future__ import annotations

import threading
from pathlib import Path

from hostbpf.scheduling.monitor import Direction, FlowProgress, Monitor


class Transfers:
    """What processes publish of the flows that they send. Methods may be called from any thread."""

    def __init__(self, directory: Path | None, netns: str | None) -> None:
        """`directory` and `netns` are as for `Monitor`, which is opened with the first reading."""
        self._where = directory, netns
        self._monitor: Monitor | None = None
        self._lock = threading.Lock()

    def read(self) -> list[FlowProgress]:
        """Return the progress of the flows that this host sends."""
        with self._lock:
            if self._monitor is None:
                self._monitor = Monitor(*self._where)
            return [each for each in self._monitor.read() if each.direction is Direction.SENT]

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            if self._monitor is not None:
                self._monitor.close()
                self._monitor = None
