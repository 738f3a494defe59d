"""Compiles P4 programs to BMv2 JSON and P4Info with p4c, for `build/` folders that are committed.

`python -m p4src.compile` makes p4src/build anew. Beside each output stands a hash of the sources, so that
a test can say that they have changed even where there is no p4c.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine.errors import EntrainError, MissingTool

ROOT = Path(__file__).resolve().parent
FABRIC = ROOT / "v1model/fabric.p4"
BUILD = ROOT / "build"
P4C = "p4c-bm2-ss"
HOW_TO_BUILD = "docs/softswitch-programs.md says how to build it on Debian"

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """What p4c makes of one program, as text: BMv2 JSON, P4Info, and the hash of the sources."""

    json: str
    p4info: str
    sources_hash: str

    def write(self, build: Path, name: str) -> None:
        """Write NAME.json, NAME.p4info.txtpb and NAME.sha256 to `build`."""
        build.mkdir(parents=True, exist_ok=True)
        for suffix, text in self._files().items():
            (build / f"{name}{suffix}").write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, build: Path, name: str) -> Compiled:
        """What stands in `build`; raises FileNotFoundError."""
        return cls(
            *((build / f"{name}{suffix}").read_text(encoding="utf-8") for suffix in cls("", "", "")._files())
        )

    def _files(self) -> dict[str, str]:
        return {".json": self.json, ".p4info.txtpb": self.p4info, ".sha256": self.sources_hash}


def sources(program: Path) -> list[Path]:
    """The program and all that it includes with quotes, in the order of first inclusion."""
    found = [program]
    for path in found:
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            included = (path.parent / name).resolve()
            if included not in found:
                found.append(included)
    return found


def sources_hash(program: Path) -> str:
    """SHA-256 over the names and contents of all sources of a program."""
    digest = hashlib.sha256()
    for path in sources(program.resolve()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest() + "\n"


def check_p4c() -> None:
    """Raise MissingTool without p4c."""
    if shutil.which(P4C) is None:
        raise MissingTool(
            f"{P4C} is not on PATH: it is needed only to change P4 programs, not to run them; {HOW_TO_BUILD}"
        )


def compile_program(program: Path) -> Compiled:
    """Run p4c on a v1model program; raises MissingTool without p4c, EntrainError with p4c's own words."""
    check_p4c()
    with tempfile.TemporaryDirectory() as scratch:
        # p4c knows the P4Info format by the suffix .txt alone.
        outputs = [Path(scratch) / "out.json", Path(scratch) / "out.txt"]
        command = [P4C, "--arch", "v1model", "--std", "p4-16", "-o", str(outputs[0])]
        command += ["--p4runtime-files", str(outputs[1]), program.name]
        run = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
        if run.returncode:
            raise EntrainError(f"{program}: {P4C} failed:\n{run.stderr}")
        bmv2 = _without_fragments(json.loads(outputs[0].read_text(encoding="utf-8")))
        text = json.dumps(bmv2, separators=(",", ":")) + "\n"  # indented, it is three times as long
        return Compiled(text, outputs[1].read_text(encoding="utf-8"), sources_hash(program))


def _without_fragments(node: Any) -> Any:
    """The JSON without quotations of the source: macros repeat whole in each, and BMv2 does not read them."""
    if isinstance(node, dict):
        return {key: _without_fragments(value) for key, value in node.items() if key != "source_fragment"}
    if isinstance(node, list):
        return [_without_fragments(value) for value in node]
    return node


if __name__ == "__main__":
    try:
        compile_program(FABRIC).write(BUILD, "fabric")
    except EntrainError as error:
        sys.exit(str(error))
    print(f"wrote {BUILD}/fabric.*")
