"""Watch DistributedDataParallel in every Python process of `entrain train`, which puts this on PYTHONPATH.

Nothing is imported before the script imports PyTorch. None of our modules stays in `sys.modules`, so that a
script's own `machine.py` or `wire.py` is found, whether it is imported before PyTorch or after it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE.parents[1])
_CLASSES = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "FSDPState",
}
"""Classes of models on several ranks, by their modules. The first one's progress is published."""


class _Finder(MetaPathFinder):
    """Finds these modules as usual, and watches their classes once they are loaded."""

    def __init__(self) -> None:
        self._awaited = dict(_CLASSES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        watched = self._awaited.pop(fullname, None)
        if watched is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _after(spec.loader, watched)
        return spec


def _after(loader: Any, watched: str) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        try:
            _monitor().watch_all(getattr(module, watched))
        except Exception as error:  # the script runs all the same
            print(f"entrain: progress will not be published: {error}", file=sys.stderr)

    loader.exec_module = exec_module


@functools.cache
def _monitor() -> Any:
    ours = {package.parent.name for package in Path(_ROOT).glob("*/__init__.py")}

    def taken_out() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in ours]
        return {name: sys.modules.pop(name) for name in names}

    theirs = taken_out()
    sys.path.insert(0, _ROOT)
    try:
        return importlib.import_module("workloads.torch_monitor")
    finally:
        sys.path.remove(_ROOT)
        taken_out()
        sys.modules.update(theirs)


def _run_theirs() -> None:
    """Run the sitecustomize that ours hides, if there is one."""
    elsewhere = [each for each in sys.path if Path(each or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder())
_run_theirs()
