"""matplotlib for drawing files, whatever backend the user's environment asks for."""

from __future__ import annotations

import os

_wished = os.environ.pop("MPLBACKEND", None)  # a notebook's is unknown to other installations
try:
    import matplotlib
finally:
    if _wished is not None:
        os.environ["MPLBACKEND"] = _wished

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402 (after the choice)

__all__ = ["matplotlib", "pyplot", "ticker"]
