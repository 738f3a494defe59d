"""The `entrain` command line: it combines the other packages into commands."""

import sys
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parent / "_packages"
if _PACKAGES.is_dir():  # installed from a wheel, which keeps the other packages here (setup.py)
    sys.path.insert(0, str(_PACKAGES))
