"""The campaign of kills, in short: after each, nothing is left, lost or silent."""

from __future__ import annotations

import pytest

from tests.short import figures


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [["switch", "agent", "controller", "ocs", "worker"], ["up"]], ids=["cluster", "up"]
)
def test_killed_processes_leave_nothing_and_lose_nothing(kinds: list[str]) -> None:
    found = figures("robustness", "faults", "--calm", "1", "--kills", str(len(kinds)), "--kinds", *kinds)
    assert found["kills"] == len(kinds)
    assert found["by_kind"] == dict.fromkeys(sorted(kinds), 1)
    # not `stalls`: beside other tests, iterations stall without a kill
    assert (found["leftovers"], found["lost"], found["silent"]) == (0, 0, 0), found["what"]
