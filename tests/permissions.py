"""Let other users of the machine into a test's directory."""

from __future__ import annotations

import tempfile
from pathlib import Path


def let_others_pass(directory: Path) -> None:
    """Let every user pass through `directory` and those above it; pytest keeps its directories to itself."""
    above = Path(tempfile.gettempdir())
    for each in (directory, *directory.parents):
        if each == above or each == each.parent:
            return
        mode = each.stat().st_mode
        if mode & 0o011 != 0o011:
            each.chmod(mode | 0o011)
