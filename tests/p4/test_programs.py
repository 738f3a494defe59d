"""The committed compiler output of the feature programs belongs to their sources."""

from __future__ import annotations

import pytest

from p4src.compile import Compiled, compile_program, sources_hash
from tests.p4.compile import BUILD, NAMES, PROGRAMS

REMEDY = "run `python -m tests.p4.compile`"


@pytest.mark.parametrize("name", NAMES)
def test_committed_output_is_of_these_sources(name: str) -> None:
    assert Compiled.read(BUILD, name).sources_hash == sources_hash(PROGRAMS / f"{name}.p4"), REMEDY


@pytest.mark.p4c
@pytest.mark.parametrize("name", NAMES)
def test_committed_output_is_what_p4c_makes(name: str) -> None:
    assert Compiled.read(BUILD, name) == compile_program(PROGRAMS / f"{name}.p4"), REMEDY


def test_nothing_else_is_committed() -> None:
    assert {path.name.split(".")[0] for path in BUILD.iterdir()} == set(NAMES)
