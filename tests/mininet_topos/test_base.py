"""Without Mininet, whatever needs a network says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_WITHOUT = """
import sys
sys.modules["mininet"] = None  # as if it were not installed
from entrain.cli import main
sys.argv = ["entrain", "run", "experiments/two-switches.toml"]
main()
"""


def test_run_without_mininet_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "apt-get install mininet" in done.stderr
    assert "Traceback" not in done.stderr
