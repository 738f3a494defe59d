"""Public traces that entrain does not include: tests that need one are skipped without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

PublicTrace = Callable[[str], Path]


@pytest.fixture
def public_trace() -> PublicTrace:
    """Find a public trace by its file name."""

    def find(name: str) -> Path:
        places = [Path(__file__).resolve().parents[3] / "shared" / "data"]
        if os.environ.get("ENTRAIN_DATA"):
            places.append(Path(os.environ["ENTRAIN_DATA"]))
        for place in places:
            if (place / name).is_file():
                return place / name
        pytest.skip(f"public trace {name} is neither in ../shared/data nor in $ENTRAIN_DATA")

    return find
