"""The compiled programs beside their sources are what p4c makes of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
UNSTEADY = {"program", "source_info", "__meta__"}  # paths and versions


def meaning(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: meaning(value) for key, value in node.items() if key not in UNSTEADY}
    return [meaning(value) for value in node] if isinstance(node, list) else node


@pytest.mark.p4c
@pytest.mark.parametrize("source", sorted(PROGRAMS.glob("*.p4")), ids=lambda path: path.stem)
def test_compiled_programs_are_fresh(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    subprocess.run(["p4c-bm2-ss", source.name, "-o", output], cwd=PROGRAMS, check=True, capture_output=True)
    committed = source.with_suffix(".json")
    assert meaning(json.loads(output.read_text())) == meaning(json.loads(committed.read_text())), (
        f"compile it anew: p4c-bm2-ss {source.name} -o {committed.name}"
    )
