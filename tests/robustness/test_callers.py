"""Callers that try to use up a server, in short: the operator is answered all the same."""

from __future__ import annotations

import pytest

from robustness.callers import ATTACKS, SERVERS
from tests.short import figures


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("server", sorted(SERVERS))
def test_an_operator_is_answered_whatever_a_caller_does(server: str) -> None:
    found = figures("robustness", "callers", "--servers", server, "--calls", "20", "--rounds", "1")
    attacks = found["servers"][server]
    assert attacks.keys() == set(ATTACKS)
    for each in attacks.values():
        assert each["refused"] == 0
        assert each["calls"] > 0
