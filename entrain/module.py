"""`python -m entrain.module NAME …` is `python -m NAME …`, for modules of packages that only entrain finds.

A wheel keeps them in a directory of its own (`machine/packages.py`).
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    name = sys.argv.pop(1)
    runpy.run_module(name, run_name="__main__", alter_sys=True)
