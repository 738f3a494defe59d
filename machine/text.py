"""Text that others have a part in, such as names, made fit for logs, terminals and gRPC."""

from __future__ import annotations

from itertools import accumulate

MOST_METADATA = 7200
"""Bytes of an error's message as gRPC sends it: clients accept 8 KiB of metadata."""


def escaped(text: str, but: str = "") -> str:
    """Return `text` with all characters escaped that cannot be printed, except those of `but`.

    Nobody can then end a line of a log, or rewrite a terminal's.
    """
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)


def sendable(message: str, room: int = MOST_METADATA) -> str:
    """Return a message that gRPC can send: valid UTF-8, and cut to `room` bytes.

    gRPC sends all but printable ASCII as three bytes for each.
    """
    kept = message.encode(errors="replace").decode()
    sizes = accumulate(1 if " " <= c <= "~" and c != "%" else 3 * len(c.encode()) for c in kept)
    fitting = sum(size <= room for size in sizes)
    return kept if fitting == len(kept) else f"{kept[: max(fitting - 3, 0)]}..."
