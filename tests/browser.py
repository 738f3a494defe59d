"""Pages as a browser shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")


def browsed(url: str, profile: Path) -> str:
    """Return the document at `url` after ten seconds of its own time. `profile`: an empty directory."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=10000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
