"""Mutated input, in short: it is answered or refused, and nothing else comes of it."""

from __future__ import annotations

import pytest

from robustness.fuzz import TARGETS, WITH_ROOT, fuzz

SHORT = {"p4json": 60, "controller": 40}
"""What a test tries of the slow ones."""


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - set(WITH_ROOT)))
def test_mutated_input_is_answered_or_refused(name: str) -> None:
    found = fuzz([name], SHORT.get(name, 300), seed=1)[name]
    assert found.tried == SHORT.get(name, 300)
    assert found.refused > 0
    assert not found.accidents, "\n".join(found.what)
