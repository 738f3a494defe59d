"""The audit log: who wanted which circuits, and what became of it, as JSON lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from machine.errors import EntrainError


class AuditLog:
    """A log that only grows. Each line is on the disk before `write` returns.

    `clock` returns seconds since 1970. Raises EntrainError if the file cannot be opened.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":  # a crash cut the last line off
                os.write(self._file, b"\n")
        except OSError as error:
            raise EntrainError(f"{path}: cannot be opened ({error.strerror})") from error

    def write(self, event: str, details: Mapping[str, Any]) -> None:
        """Append a line. Raises EntrainError if it cannot be written, so that nothing is done without it."""
        line = json.dumps({"unix_s": round(self._clock(), 6), "event": event, **details}) + "\n"
        try:
            os.write(self._file, line.encode())
            os.fsync(self._file)
        except OSError as error:
            raise EntrainError(f"{self.path}: cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log, the oldest first, without one that a crash cut off.

    Raises EntrainError if the file cannot be read.
    """
    try:
        text = path.read_text(errors="replace", encoding="utf-8")
    except OSError as error:
        raise EntrainError(f"{path}: cannot be read ({error.strerror})") from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
