"""Limits of the machine that a process runs into: disks, open files, memory, threads."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from machine.errors import EntrainError

_PROCESS = {
    errno.EMFILE: "raise the limit of open files (`ulimit -n`, or LimitNOFILE= of a service)",
    errno.ENFILE: "raise this machine's limit of open files (`sysctl fs.file-max`)",
    errno.ENOMEM: "raise the limit of memory (`ulimit -v`, or MemoryMax= of a service), or end others",
}
_DISK = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room in the user's quota of that disk",
    errno.EFBIG: "raise the limit of a file's length (`ulimit -f`)",
}
_LEAST_FILES = 32
_LITTLE = 1 << 16
"""A disk with less room, in bytes, is full for whoever wants to write more than a line."""
_WORDS = {
    "Too many open files": errno.EMFILE,
    "failed to map segment": errno.ENOMEM,
    "Cannot allocate memory": errno.ENOMEM,
}
"""What the dynamic loader says, of which Python and its libraries make errors without a number."""
_THREADS = "raise the limits of threads and memory (`ulimit -u -v`, or TasksMax= and MemoryMax= of a service)"


def _reached(error: BaseException | None) -> tuple[str, str] | None:
    """Return which limit `error` comes from, and the remedy; None if from none."""
    match error:
        case MemoryError():
            return os.strerror(errno.ENOMEM), _PROCESS[errno.ENOMEM]
        case OSError(errno=int(number)) if remedy := (_PROCESS | _DISK).get(number):
            return os.strerror(number), remedy
        case EntrainError():  # of BPF, which has no disk
            number = getattr(error, "errno", 0)
            return (os.strerror(number), _PROCESS[number]) if number in _PROCESS else None
        case ImportError() | OSError(errno=None):
            said = f"{error} {error.__context__}"
            number = next((number for words, number in _WORDS.items() if words in said), 0)
            return (os.strerror(number), _PROCESS[number]) if number else None
        case RuntimeError(args=("can't start new thread",)):
            return str(error), _THREADS
        case BaseExceptionGroup():
            return next(filter(None, map(_reached, error.exceptions)), None)
    return None


def full_disk(path: Path) -> str:
    """Return words about the disk of `path` if it is full, with `; ` before them; else nothing."""
    with contextlib.suppress(OSError):  # of a directory that is not there
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < _LITTLE:
            return f"; {path.parent}: {os.strerror(errno.ENOSPC)}; {_DISK[errno.ENOSPC]}"
    return ""


def check_limits(memory_mib: int = 0) -> None:
    """Raise EntrainError if this process may have too few files, or less than `memory_mib` of memory.

    With less, libraries in C end it, gRPC above all, and name neither the limit nor a remedy.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < _LEAST_FILES:
        what = f"this process may have {files} files open, and needs {_LEAST_FILES}"
        raise EntrainError(f"{what}; {_PROCESS[errno.EMFILE]}")
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and most < memory_mib << 20:
        what = f"this process may have {most >> 20} MiB of memory, and needs {memory_mib}"
        raise EntrainError(f"{what}; {_PROCESS[errno.ENOMEM]}")


def allow_many_files() -> None:
    """Let this process have as many files open as it may ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def limits_named() -> Iterator[None]:
    """Within, an error that comes from a limit of the machine becomes an EntrainError with the remedy.

    One that is an EntrainError already gets the remedy.
    """
    try:
        yield
    except EntrainError as error:
        found = _reached(error) or _reached(error.__cause__)
        if found and found[1] not in str(error):
            error.args = (f"{error}; {found[1]}",)
        raise
    except Exception as error:
        if (found := _reached(error)) is None:
            raise
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise EntrainError(f"{place}{found[0]}; {found[1]}") from error
