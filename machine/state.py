"""Directories and lock files that only their owner can change."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

from machine.errors import EntrainError


def own_directory(path: Path, mode: int = 0o755) -> Path:
    """Create directory `path` with exactly `mode`, or check that an existing one is safe to use.

    Raises EntrainError if it cannot be created, is not a directory, belongs to another user, or is writable
    by others.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode, parents=True)
            path.chmod(mode)  # regardless of the umask
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:  # a symbolic link, too
        raise EntrainError(f"{path}: is not a directory; remove it") from error
    except OSError as error:
        remedy = "; run as root" if isinstance(error, PermissionError) else ""
        raise EntrainError(f"{path}: cannot be created or opened ({error.strerror}){remedy}") from error
    try:
        status = os.fstat(directory)
    finally:
        os.close(directory)
    check_owner(path, status.st_uid)
    if status.st_mode & 0o022:
        raise EntrainError(
            f"{path}: other users can change it (mode {S_IMODE(status.st_mode):o}); "
            f"check its contents, then run `chmod go-w {path}`"
        )
    return path


def check_owner(path: Path, uid: int) -> None:
    """Raise EntrainError unless `uid`, the owner of `path`, is the user of this process."""
    if uid != os.geteuid():
        raise EntrainError(f"{path}: belongs to {_user(uid)}; run as {_user(uid)}, or remove it")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold lock file `path` exclusively, after waiting for others to release it.

    Other users cannot open the file, so they cannot hold the lock. Raises EntrainError if the file cannot be
    opened or belongs to another user.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EntrainError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        check_owner(path, os.fstat(lock).st_uid)
        os.fchmod(lock, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
