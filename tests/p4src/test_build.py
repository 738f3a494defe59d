"""The committed compiler output belongs to the sources that stand beside it."""

import pytest

from p4src.compile import BUILD, FABRIC, Compiled, compile_program, sources, sources_hash


def test_committed_output_is_of_these_sources() -> None:
    assert Compiled.read(BUILD, "fabric").sources_hash == sources_hash(FABRIC), "run `make p4`"


def test_hash_covers_every_included_file() -> None:
    names = {path.name for path in sources(FABRIC)}
    assert {"fabric.p4", "headers.p4", "size.p4", "slot_header.p4", "parser.p4", "load_table.p4"} <= names


@pytest.mark.p4c
def test_committed_output_is_what_p4c_makes() -> None:
    assert Compiled.read(BUILD, "fabric") == compile_program(FABRIC)
