"""Schedules the traffic of distributed DNN training: the command line, and the same from Python.

    import entrain

    results = entrain.Experiment.load("experiments/mltcp-two-jobs.toml").run(progress=print)
    results.jobs

The names in `__all__` are stable; docs/python.md describes them. Each is imported when it is first used, so
`import entrain` is fast and starts nothing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

_PACKAGES = Path(__file__).resolve().parent / "_packages"
if _PACKAGES.is_dir():  # installed from a wheel, which keeps the other packages here (setup.py)
    sys.path.insert(0, str(_PACKAGES))

if TYPE_CHECKING:
    from entrain.api.experiment import Experiment, Results
    from entrain.api.network import Host, Network, up
    from entrain.api.plugins import plugin
    from entrain.api.simulator import SimulationResults, simulate
    from machine.errors import BadInput, EntrainError

__all__ = [
    "BadInput",
    "EntrainError",
    "Experiment",
    "Host",
    "Network",
    "Results",
    "SimulationResults",
    "plugin",
    "simulate",
    "up",
]

_FROM = {
    "BadInput": "machine.errors",
    "EntrainError": "machine.errors",
    "Experiment": "entrain.api.experiment",
    "Host": "entrain.api.network",
    "Network": "entrain.api.network",
    "Results": "entrain.api.experiment",
    "SimulationResults": "entrain.api.simulator",
    "plugin": "entrain.api.plugins",
    "simulate": "entrain.api.simulator",
    "up": "entrain.api.network",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'entrain' has no attribute {name!r}")
    found = getattr(importlib.import_module(_FROM[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
