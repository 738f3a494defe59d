"""Where and by which version a result was measured."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from machine import packages

EMULATION = 2
"""The revision of emulated networks. From 2 on, what waits in a switch's queue holds no sender back."""

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Origin:
    """What produced a result."""

    version: str
    """The version of entrain, and the commit of a checkout; `+` after it: with changes."""
    kernel: str
    processors: int
    """Number of CPUs that the process could use."""
    ended: str
    """When it was complete: date and time, UTC, ISO 8601."""
    emulation: int = 1
    """The revision of the emulated network."""

    def __str__(self) -> str:
        """Return it as a phrase: version, date, machine."""
        return (
            f"version {self.version}, {self.ended[:10]}, Linux {self.kernel}, "
            f"{self.processors} CPU{'' if self.processors == 1 else 's'}"
        )


def here() -> Origin:
    """Return the origin of a result that is complete now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Origin(version(), platform.release(), len(os.sched_getaffinity(0)), now, EMULATION)


@functools.cache
def version() -> str:
    """Return the version of entrain, with the commit if it runs from a Git checkout."""
    number = packages.version()
    commit = _git("rev-parse", "--short=10", "HEAD")
    if commit is None:
        return number
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{number} ({commit}{'+' if changed else ''})"


def listed(origins: Iterable[Origin | None]) -> str:
    """Return origins as a phrase, each once: versions and the days of the first and last result."""
    known = [each for each in origins if each is not None]
    if not known:
        return "version not recorded"
    versions = ", ".join(dict.fromkeys(each.version for each in known))
    days = sorted({each.ended[:10] for each in known})
    return f"version {versions}, {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")


def _git(*arguments: str) -> str | None:
    """Return the output of a Git command in the checkout, or None if this is not one."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
