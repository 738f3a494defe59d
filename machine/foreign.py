"""Says what to do with files of other tools, which nothing here reads."""

from __future__ import annotations

from pathlib import Path

_TOOLS = {
    ".json": "p4-utils and others",
    ".yml": "containerlab and others",
    ".yaml": "containerlab and others",
    ".et": "Chakra",
}


def remedy(path: Path) -> str:
    """Return what to append to the refusal of a file: empty unless it is named as another tool's."""
    tool = _TOOLS.get(path.suffix.lower())
    if tool is None:
        return ""
    return f"; files of {tool} are not read: docs/extend.md, 'Files of other tools', says what to write"
