"""The campaign of limits, in short: each is named with its remedy, and nothing is lost or left."""

from __future__ import annotations

import pytest

from tests.short import figures


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "limit", "level"), [("run", "disk", 16), ("agent", "files", 24)])
def test_a_limit_is_named_and_nothing_is_lost_or_left(kind: str, limit: str, level: int) -> None:
    found = figures("robustness", "limits", "--kinds", kind, "--limits", limit, "--levels", str(level))
    assert (found["cases"], found["refused"]) == (1, 1)
    assert not any(found["what"].values()), found["what"]
