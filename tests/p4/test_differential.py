"""softswitch equals BMv2: ports and bytes of thousands of random and mutated packets under random entries."""

from __future__ import annotations

import pytest

from tests.p4.differential import NAMES, compare


@pytest.mark.bpf
@pytest.mark.bmv2
@pytest.mark.parametrize("name", NAMES)
def test_softswitch_equals_bmv2(request: pytest.FixtureRequest, name: str) -> None:
    count = request.config.getoption("--packets", None) or (2000 if name == "fabric" else 500)
    found = compare(name, count, request.config.getoption("--seed", 1))
    assert found is None, str(found)
