"""A benchmark or a campaign in short, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def figures(package: str, name: str, *options: str) -> dict[str, Any]:
    """Return what `python -m PACKAGE NAME --json` prints. Fails with its error if that is nothing."""
    command = [sys.executable, "-m", package, name, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
