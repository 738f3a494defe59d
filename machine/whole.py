"""Files that are written whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a draft that replaces `path` at the end, so that `path` is never incomplete.

    A symbolic link stays one, and what is no regular file, such as /dev/stdout, is written as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    draft = path.with_name(f".{path.name}")
    try:
        yield draft
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
