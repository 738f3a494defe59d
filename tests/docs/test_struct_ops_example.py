"""The congestion control of docs/extend.md works: it compiles, loads, is chosen, and is gone afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ebpf.struct_ops import available_congestion_controls

ROOT = Path(__file__).parents[2]


@pytest.mark.root
def test_the_example_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "fixed.bpf.c").write_text(program)
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.returncode) == ("fixed\n", 0), result.stderr
    assert "fixed" not in available_congestion_controls()
