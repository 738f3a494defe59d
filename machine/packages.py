"""Where the project's packages are, and how a child process runs one of their modules."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "entrain-net"
"""Our name on the package index, where `entrain` is another project."""

ROOT = Path(__file__).resolve().parents[1]
"""The directory that has all packages, and experiments/: the checkout, or the wheel's private directory."""

_PRIVATE = "_packages"
"""Its name in a wheel (setup.py, entrain/__init__.py)."""


INSTALLED = ROOT.name == _PRIVATE
"""Whether this is a wheel. Its eBPF programs are compiled."""


def version() -> str:
    """Return the version that is installed, or `unknown` where packages are used without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def run_module(name: str) -> list[str]:
    """Return the command that runs module `name` of ours, as `python -m` does in a checkout.

    In a wheel's private directory only `entrain` finds it.
    """
    if not INSTALLED:
        return [sys.executable, "-m", name]
    return [sys.executable, "-m", "entrain.module", name]
