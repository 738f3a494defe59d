"""The campaign of limits, in short: each is named with its remedy, and nothing is lost or left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limit", "level"),
    [("run", "disk", 16), ("agent", "files", 24)],
)
def test_a_limit_is_named_and_nothing_is_lost_or_left(kind: str, limit: str, level: int) -> None:
    options = ["--json", "--kinds", kind, "--limits", limit, "--levels", str(level)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "limits", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (found["cases"], found["refused"]) == (1, 1)
    assert not any(found["what"].values()), found["what"]
