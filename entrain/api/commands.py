"""Commands of entrain that run in a process of their own."""

from __future__ import annotations

import json

from machine.errors import BadInput, EntrainError


def error_of(status: int, output: str, errors: str) -> EntrainError:
    """Return the error with which a command ended that was given `--json`: as JSON, or else in words."""
    text = errors.strip() or f"the command ended with status {status}"
    for line in output.splitlines():
        if line.startswith('{"error"'):
            text = json.loads(line)["error"]
    return (BadInput if status == 2 else EntrainError)(text)
