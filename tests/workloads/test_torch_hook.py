"""What `entrain train` puts before a script takes the place of none of the script's own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("machine", "schedulers", "wire", "workloads")
TORCH = {
    "__init__.py": "import torch.nn.parallel.distributed",
    "_compile.py": "def _disable_dynamo(function): return function",
    "distributed/__init__.py": "_register_comm_hook = _register_builtin_comm_hook = print\n"
    "destroy_process_group = print\n"
    "def is_initialized(): return False",
    "nn/__init__.py": "",
    "nn/parallel/__init__.py": "",
    "nn/parallel/distributed.py": "class DistributedDataParallel:\n    def forward(self): pass",
}
"""As much of PyTorch as the monitor needs to load."""


@pytest.mark.parametrize("first", ["torch", "own"])
def test_a_scripts_own_modules_are_found_before_and_after_pytorch(tmp_path: Path, first: str) -> None:
    for name, text in TORCH.items():
        file = tmp_path / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name in OURS:
        (tmp_path / f"{name}.py").write_text("OWN = True")
    own = f"import {', '.join(OURS)}"
    order = ("import torch", own) if first == "torch" else (own, "import torch")
    watched = "torch.nn.parallel.distributed.DistributedDataParallel.forward.__wrapped__"
    script = tmp_path / "train.py"
    script.write_text("\n".join([*order, *(f"assert {name}.OWN" for name in OURS), watched]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workloads" / "torch_hook")}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
