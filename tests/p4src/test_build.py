"""The committed compiler output belongs to the sources that stand beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from p4src.compile import (
    BUILD,
    FABRIC,
    HOW_TO_BUILD,
    P4C,
    ROOT,
    Compiled,
    compile_program,
    sources,
    sources_hash,
)


def test_committed_output_is_of_these_sources() -> None:
    assert Compiled.read(BUILD, "fabric").sources_hash == sources_hash(FABRIC), "run `make p4`"


def test_hash_covers_every_included_file() -> None:
    names = {path.name for path in sources(FABRIC)}
    assert {"fabric.p4", "headers.p4", "size.p4", "slot_header.p4", "parser.p4", "load_table.p4"} <= names


@pytest.mark.p4c
def test_committed_output_is_what_p4c_makes() -> None:
    assert Compiled.read(BUILD, "fabric") == compile_program(FABRIC)


@pytest.mark.parametrize(
    "command", [["-m", "p4src.compile"], ["examples/p4/count_marks.py", "{out}"]], ids=["compile", "example"]
)
def test_without_p4c_the_page_that_says_how_to_build_it_is_named(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = [sys.executable, *(word.format(out=out) for word in command)]
    nothing = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(line, cwd=ROOT.parent, env=nothing, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not out.exists()
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"{P4C} is not on PATH")
    page = (ROOT.parent / HOW_TO_BUILD.split()[0]).read_text()
    assert "## Building p4c" in page and f"ninja -C p4c/build {P4C}" in page
