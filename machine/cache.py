"""The cache of compiled files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def directory() -> Path:
    """Return $XDG_CACHE_HOME/entrain, by default ~/.cache/entrain. Create it if it is missing."""
    home = os.environ.get("XDG_CACHE_HOME")
    path = (Path(home) if home else Path.home() / ".cache") / "entrain"
    path.mkdir(parents=True, exist_ok=True)
    return path


def prune(pattern: str, keep: int) -> None:
    """Remove all files that match `pattern`, except the `keep` most recently used."""
    used = []
    for path in directory().glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            used.append((path.stat().st_mtime, path))
    for _, path in sorted(used, reverse=True)[keep:]:
        path.unlink(missing_ok=True)
