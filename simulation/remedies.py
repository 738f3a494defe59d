"""The picture of a matrix: routings by policies, one panel for each load; of simulated or live results."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUTINGS = {"ecmp": "ECMP", "source": "source\nrouting", "vclos": "vClos"}


@dataclass(frozen=True)
class Cell:
    """Iteration times over those alone, and marked segments per job and iteration; None: not counted."""

    mean: float
    p99: float
    marks: float | None = None


def draw(cells: Mapping[tuple[str, str, str], Cell], note: str) -> Figure:
    """Draw `cells`, by load, routing and policy. `note` says below the panels what the cells show."""
    from matplotlib.colors import LogNorm

    from machine.headless import pyplot

    loads, routings, policies = (list(dict.fromkeys(key[i] for key in cells)) for i in range(3))
    worst = max(cell.mean for cell in cells.values())
    figure, axes = pyplot.subplots(
        1,
        len(loads),
        figsize=(max(1.2 + 1.15 * len(policies) * len(loads), 9.0), 2.1 + 0.95 * len(routings)),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    image = None
    for axis, load in zip(axes[0], loads, strict=True):
        here = np.full((len(routings), len(policies)), np.nan)
        for r, routing in enumerate(routings):
            for p, policy in enumerate(policies):
                cell = cells.get((load, routing, policy))
                if cell is None:
                    continue
                here[r, p] = max(cell.mean, 1.0)
                text = f"{cell.mean:.2f}\np99 {cell.p99:.2f}"
                if cell.marks is not None:
                    text += f"\n{_thousands(cell.marks)} marks"
                dark = np.log(here[r, p]) > 0.55 * np.log(max(worst, 1.2))
                axis.text(
                    p, r, text, ha="center", va="center", fontsize=8, color="white" if dark else "black"
                )
        image = axis.imshow(here, cmap="YlOrRd", norm=LogNorm(1.0, max(worst, 1.2)), aspect="auto")
        axis.set_xticks(range(len(policies)), policies)
        axis.set_yticks(range(len(routings)), [ROUTINGS.get(each, each) for each in routings])
        axis.set_xlabel("policy")
        axis.set_title(load, fontsize=10)
    assert image is not None
    axes[0][0].set_ylabel("routing")
    bar = figure.colorbar(image, ax=axes[0].tolist(), pad=0.01)
    ticks = [tick for tick in (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0) if tick <= max(worst, 1.2)]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.set_label("iteration time / alone")
    figure.supxlabel("\n".join(textwrap.wrap(note, int(13 * figure.get_figwidth()))), fontsize=8)
    return figure


def _thousands(count: float) -> str:
    return f"{count / 1e3:.0f}k" if count >= 1e4 else f"{count:.2g}" if count < 100 else f"{count:.0f}"
