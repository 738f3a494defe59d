"""Text that others have a part in, such as names, made fit for logs and terminals."""

from __future__ import annotations


def escaped(text: str, but: str = "") -> str:
    """Return `text` with all characters escaped that cannot be printed, except those of `but`.

    Nobody can then end a line of a log, or rewrite a terminal's.
    """
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)
