"""Every program loads on Debian's kernels. `make test-kernels` does more (CONTRIBUTING.md)."""

from __future__ import annotations

import os

import pytest

from machine.errors import EntrainError
from tests.kernels import guest
from tests.kernels.__main__ import BUILD, examine, unpacked
from tests.kernels.load import compile_all


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a guest sees what its user may read")
@pytest.mark.parametrize("series", ["6.1", "6.12"])
def test_every_program_loads(series: str) -> None:
    try:
        guest.require()
        kernel = unpacked([series])[-1]
    except EntrainError as error:
        pytest.skip(f"needs a guest: {error}")
    compile_all()
    found = examine(kernel, ["load"], {})
    assert found["failed"] == {}, (BUILD / "results" / f"{kernel.version}-load" / "console").read_text()
    assert found["refused"] == {}
    assert found["loaded"] == found["programs"] > 40
