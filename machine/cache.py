"""The cache of compiled files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine.errors import EntrainError


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


def program(source: Path, compiler: Sequence[str], libraries: Sequence[str] = (), version: str = "") -> Path:
    """Return the program that `compiler`, with its options, makes of a file and libraries.

    It is made when it is first needed, and again for another content or `version` of the libraries. Raises
    EntrainError with the compiler's message.
    """
    digest = hashlib.sha256(source.read_bytes() + version.encode()).hexdigest()[:16]
    output = directory() / f"{source.stem}-{digest}"
    if output.exists():
        return output
    descriptor, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    os.close(descriptor)
    try:
        command = [*compiler, "-o", temporary, str(source), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EntrainError(f"{source}: the compiler failed\n{done.stderr.strip()}")
        Path(temporary).chmod(0o700)
        Path(temporary).replace(output)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return output
