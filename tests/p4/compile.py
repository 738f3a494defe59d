"""Compiles the feature programs: `python -m tests.p4.compile [NAME...]` makes programs/build anew."""

from __future__ import annotations

import sys
from pathlib import Path

from p4src.compile import compile_program

PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILD = PROGRAMS / "build"
INCLUDED = {"base", "ops"}

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.p4") if path.stem not in INCLUDED)


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        compile_program(PROGRAMS / f"{name}.p4").write(BUILD, name)
        print(f"wrote {BUILD}/{name}.*")
