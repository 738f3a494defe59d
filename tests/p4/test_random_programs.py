"""Programs that nobody thought of run alike on softswitch and BMv2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.p4.random_programs import check


@pytest.mark.bpf
@pytest.mark.bmv2
@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_program_runs_alike(tmp_path: Path, seed: int) -> None:
    found = check(seed, tmp_path)
    assert found is None, str(found)
